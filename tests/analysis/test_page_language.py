"""Japanese and Chinese are shown in fonts of their own, and told to who reads the page aloud."""

import make_results
import pytest
from page_results import JAPANESE

from analysis.report.__main__ import main
from analysis.report.page import east_asian, language_of

CHINESE = "比较两个推理引擎：每一步的时间与直接的开销"


@pytest.mark.parametrize(
    ("text", "letters", "language"),
    [
        ("vLLM against SGLang", "", ""),
        ("推論エンジンの比較", "ja", "ja"),
        (CHINESE, "zh", "zh"),
        ("엔진 비교", "ko", "ko"),
        ("GRPO of Phi-4-reasoning-plus with verl, on 较", "zh", ""),
        ("変換器＝基準", "ja", "ja"),
        ("比较", "zh", "zh"),
        ("大中小", "", ""),
        ("verl 0.4.1で二つのエンジンを比べる", "ja", "ja"),
    ],
)
def test_the_language_is_told_by_the_letters(text, letters, language):
    assert (east_asian([text]), language_of(text)) == (letters, language)


def fonts(page, selector):
    """The fonts with which the browser drew an element's text."""
    root = page.driver.execute_cdp_cmd("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
    page.driver.execute_cdp_cmd("CSS.enable", {})
    node = page.driver.execute_cdp_cmd("DOM.querySelector", {"nodeId": root, "selector": selector})["nodeId"]
    used = page.driver.execute_cdp_cmd("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]
    return {font["familyName"] for font in used}


def test_japanese_is_drawn_in_a_japanese_font_and_chinese_in_a_chinese_one(page, report, tmp_path):
    page.open(report / "report.html")
    assert any(name.endswith("CJK JP") for name in fonts(page, "table.phases th.arm"))
    assert JAPANESE in page.js("document.querySelector('table.phases th.arm').textContent")
    folder = tmp_path / "quick"
    arms = {"基准": ("transformers", 3.2), "vllm": ("vllm", 0.9)}
    ids = iter(("base", "arm"))
    make_results.realistic(folder, arms, seeds=1, steps=3, run_ids=lambda n: next(ids))
    plan = folder / "plan.json"
    plan.write_text(plan.read_text().replace("Made-up timings for a test.", CHINESE))
    assert main(["--plan", str(plan), "--results", str(folder), "--out", str(folder)]) == 0
    page.open(folder / "report.html")
    page.js("[...document.querySelectorAll('#figure-phases text')].find(t => t.textContent === '基准').id = 'drawn'")
    for selector in (".description", "table.phases th.arm", "#drawn"):
        assert any(name.endswith("CJK SC") for name in fonts(page, selector)), selector
    assert page.js("document.querySelector('.description').lang") == "zh"
    assert page.js("document.documentElement.lang") == "en"
