"""Draws docs/report.svg, the picture in the README, from the report of README's own example: `make picture`.

Chromium prints the page, from its title to the end of the answer, to one PDF sheet. Debian's poppler-utils converts
it to SVG, which is text.
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
WIDTH = 1037  # pixels
MARGIN = 12  # pixels, below the last line
PIXELS_PER_INCH = 96  # Chromium's
LAST = "answer"


def main(page: Path, picture: Path) -> None:
    options = webdriver.ChromeOptions()
    for flag in ("headless", "no-sandbox", "disable-gpu", "disable-background-networking", "hide-scrollbars"):
        options.add_argument(f"--{flag}")
    options.binary_location = "/usr/bin/chromium"
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        # The sheet's width, so that lines break as in print.
        size = {"width": WIDTH, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
        driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        driver.get(page.as_uri())
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "screen"})
        # PDF cannot scroll: remove the shadows that mark scrolling boxes.
        driver.execute_script("document.querySelectorAll('.scroll').forEach(box => box.style.background = 'none')")
        height = driver.execute_script(f"return document.getElementById('{LAST}').getBoundingClientRect().bottom")
        sheet = {"paperWidth": WIDTH / PIXELS_PER_INCH, "paperHeight": (height + MARGIN) / PIXELS_PER_INCH}
        margins = dict.fromkeys(("marginTop", "marginBottom", "marginLeft", "marginRight"), 0)
        wanted = {**sheet, **margins, "printBackground": True, "pageRanges": "1"}
        printed = driver.execute_cdp_cmd("Page.printToPDF", wanted)
    finally:
        driver.quit()
    with tempfile.NamedTemporaryFile(suffix=".pdf") as pdf:
        pdf.write(base64.b64decode(printed["data"]))
        pdf.flush()
        subprocess.run(["pdftocairo", "-svg", "-f", "1", "-l", "1", pdf.name, str(picture)], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), ROOT / "docs" / "report.svg")
    sys.exit(0)
