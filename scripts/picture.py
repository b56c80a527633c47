"""Draw docs/report.svg, the picture in the README, from the quickstart's report: `make picture`.

Chromium prints the top of the page to PDF and Debian's poppler-utils turns that into SVG: text, not a binary.
"""

from __future__ import annotations

import base64
import subprocess
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).resolve().parents[1]
# Inches, at Chromium's 96 pixels an inch: from the title to the end of the first figure.
WIDTH, HEIGHT = 10.8, 7.55


def main(page: Path, picture: Path) -> None:
    options = webdriver.ChromeOptions()
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking"):
        options.add_argument(f"--{flag}")
    options.binary_location = "/usr/bin/chromium"
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        driver.get(page.as_uri())
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})
        wanted = {"paperWidth": WIDTH, "paperHeight": HEIGHT, "printBackground": True, "pageRanges": "1"}
        wanted |= {"marginTop": 0, "marginBottom": 0, "marginLeft": 0, "marginRight": 0}
        printed = driver.execute_cdp_cmd("Page.printToPDF", wanted)
    finally:
        driver.quit()
    with tempfile.NamedTemporaryFile(suffix=".pdf") as pdf:
        pdf.write(base64.b64decode(printed["data"]))
        pdf.flush()
        subprocess.run(["pdftocairo", "-svg", "-f", "1", "-l", "1", pdf.name, str(picture)], check=True)


if __name__ == "__main__":
    main(ROOT / "results" / "quickstart" / "report.html", ROOT / "docs" / "report.svg")
    sys.exit(0)
