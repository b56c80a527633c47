"""Installs conda packages into a new prefix with py-rattler, which checks each file's sha256.

The controller's Python runs this file, isolated, with JSON on stdin: `library` (py-rattler's folder), `prefix`,
`cache`, and `packages`, each with name, version, build, subdir, url, sha256 and needs.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any


def main() -> int:
    """Installs all packages; 0 on success, 1 with the reason on stderr otherwise."""
    given = json.load(sys.stdin)
    sys.path.insert(0, given["library"])
    try:
        asyncio.run(_install(given))
    except Exception as error:
        print(error, file=sys.stderr)
        return 1
    return 0


async def _install(given: dict[str, Any]) -> None:
    from rattler import install
    from rattler.config import Config
    from rattler.package_cache import PackageCache, PackageCacheLayer, ValidationMode

    # Checks the contents, not the dates, of packages that an earlier build unpacked.
    layer = PackageCacheLayer(Path(given["cache"])).with_validation_mode(ValidationMode.full())
    await install(
        [_record(package) for package in given["packages"]],
        given["prefix"],
        package_cache=PackageCache.from_layers([layer]),
        execute_link_scripts=True,  # as conda does
        show_progress=False,
        # Copies, as uv's: an edit of a hard link would be in the cache, and with it in every environment.
        config=Config.from_toml("allow-hard-links = false\nallow-symbolic-links = false"),
    )


def _record(package: dict[str, Any]) -> Any:
    from rattler import PackageName, PackageRecord, RepoDataRecord
    from rattler.package.build_string import BuildString

    record = PackageRecord(
        name=PackageName(package["name"]),
        version=package["version"],
        build=BuildString(package["build"]),
        build_number=0,
        subdir=package["subdir"],
        arch=None,
        platform=None,
        depends=package["needs"],
    )
    record.sha256 = bytes.fromhex(package["sha256"])
    channel, _, filename = package["url"].rpartition("/")
    return RepoDataRecord(record, filename, package["url"], channel.rpartition("/")[0])


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # py-rattler's threads may crash an interpreter that finalizes
