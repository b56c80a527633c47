"""Before a training, Snakemake verifies a stack whose checks have changed, and refuses one that somebody has edited."""

import pytest

from ..quick_site import QuickSite


@pytest.fixture
def site(tmp_path):
    folder = tmp_path / "site"
    folder.mkdir()
    return QuickSite(folder)


def test_changed_checks_are_run_again_by_snakemake_itself(site):
    assert "rule stack_checks:" not in site.snakemake("--dry-run").stdout
    for verdict in site.folder.glob(".stacks/*/*/verify-*.json"):
        verdict.rename(verdict.with_name("verify-0123456789ab.json"))
    planned = site.snakemake("--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert "rule stack_checks:" in planned.stdout and "rule stack:" not in planned.stdout


def test_changed_checks_train_no_finished_run_again(site):
    assert site.snakemake().returncode == 0
    then = "verify-0123456789ab.json"  # when it was trained
    for verdict in site.folder.glob(".stacks/*/*/verify-*.json"):
        today = verdict.name
        verdict.rename(verdict.with_name(then))
    records = [*(site.folder / ".snakemake" / "metadata").rglob("*")]
    texts = {record: record.read_text() for record in records if record.is_file()}
    changed = [record for record, text in texts.items() if today in text]
    assert changed
    for record in changed:
        record.write_text(texts[record].replace(today, then))
    planned = site.snakemake("--dry-run")
    assert planned.returncode == 0 and "rule train:" not in planned.stdout, planned.stdout


def test_an_edited_package_is_refused_before_anything_is_submitted(site):
    (final, *_) = sorted(site.folder.glob(".stacks/*/*"))
    record = final / "env/lib/python3.11/site-packages/trl-1.16.0.dist-info/RECORD"
    record.parent.mkdir(parents=True)
    record.write_text("trl.py,sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0\n")
    code = record.parents[1] / "trl.py"
    code.touch()
    assert site.snakemake("--until", "plan").returncode == 0
    code.write_text("print('where am I?')\n")
    refused = site.snakemake()
    assert refused.returncode != 0 and site.trained() == 0
    assert f"files of stack {final.parent.name} have changed since it was verified: trl: trl.py" in refused.stderr
