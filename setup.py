"""What a wheel has: one folder `rolloutbench`, since a user's site-packages may have a `common` or `workflow`."""

from setuptools import find_namespace_packages, setup

# rules, envs and profiles are data.
ROOMS = ["common", "node", "engines", "trainers", "analysis", "workflow", "rules", "envs", "profiles"]
FOUND = find_namespace_packages(include=[pattern for room in ROOMS for pattern in (room, f"{room}.*")])

setup(
    packages=["rolloutbench", *(f"rolloutbench.{package}" for package in FOUND)],
    package_dir={f"rolloutbench.{room}": room for room in ROOMS},
)
