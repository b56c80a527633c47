"""A headless Chromium that tells everything it asked the network for, and everything it complained about."""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By

from tests.patience import Patience

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
]  # fmt: skip
PACKAGES = ("chromium", "chromium-driver", "fonts-noto-cjk")


def programs():
    """(browser, driver), installed first where that can be done; skips the test where it cannot."""
    found = _found()
    if not all(found) and os.geteuid() == 0 and Path("/etc/debian_version").is_file():
        env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["apt-get", "update"], ["apt-get", "install", "-y", *PACKAGES]):
            subprocess.run(command, env=env, check=False, capture_output=True)
        found = _found()
    browser, driver = found
    if browser is None or driver is None:
        pytest.skip(f"needs Chromium and its driver: install {', '.join(PACKAGES)} (Debian's names) and run again")
    return browser, driver


def _found():
    browser = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    return browser, shutil.which("chromedriver")


def eventually(page, look, wanted=bool):
    """What `look` gives, as soon as that is wanted: the browser passes events on, copies and saves in its own time."""
    patience = Patience(page.driver.service.process.pid, 20)
    while not wanted(found := look()) and not patience.is_over():
        time.sleep(0.02)
    assert wanted(found), found
    return found


class Page:
    """One browser window."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, width=1280, dark=False, height=900):
        self.driver.get_log("performance")
        self.driver.get_log("browser")
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.driver.get(path.as_uri())

    def js(self, script):
        return self.driver.execute_script(f"return {script}")

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def press(self, key):
        ActionChains(self.driver).send_keys(key).perform()

    def complaints(self):
        """Console messages, refused resources and uncaught errors since `open`."""
        return [f"{e['level']}: {e['message']}" for e in self.driver.get_log("browser")]

    def requests(self):
        """Addresses asked for since `open`, except files on this machine and what the page made itself."""
        events = [json.loads(e["message"])["message"] for e in self.driver.get_log("performance")]
        asked = [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
        assert any(url.startswith("file:") for url in asked), "the log of requests is not being kept"
        return [url for url in asked if not url.startswith(("file:", "data:", "blob:"))]


@contextmanager
def chromium():
    browser, driver = programs()
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in FLAGS:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = webdriver.Chrome(options=options, service=Service(driver))
    window.set_script_timeout(3600)  # half a minute is not enough for axe on a busy machine
    try:
        yield Page(window)
    finally:
        window.quit()
