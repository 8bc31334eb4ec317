"""The report: every chapter from the results of its command, a word where one is missing, a page that stands alone."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from hypic.errors import InvalidRequestError
from hypic.eval.cli import main
from hypic.eval.report_inputs import read_folder
from hypic.eval.report_page import run_eval_report

ARMS = ("full", "prefix", "hypic")
QUALITY = {
    "dataset": "recall",
    "sets": {
        "plain": {
            arm: {"score": score, "interval": [score - 1, score + 1], "n": 9, "lost_points": 90.0 - score,
                  "lost_percent": 1.0, "changed": 2}
            for arm, score in zip(ARMS, (90.0, 90.0, 89.5), strict=True)
        }
    },
    "means": {"full": {"score": 90.0}, "prefix": {"score": 90.0}, "hypic": {"score": 89.5}},
}  # fmt: skip
TTFT = {
    "documents": 16,
    "prompt_tokens": 16000,
    "speedup": 80.0,
    "arms": {
        arm: {"p50_ms": ms, "p99_ms": ms + 1, "tokens_computed": 5}
        for arm, ms in zip(ARMS, (8000.0, 7900.0, 90.0), strict=True)
    },
}
POINT = {"held": True, "reason": "", "request_goodput": 1.0, "cached_share": 0.5}
SERVE = {
    "trace": "ragpulse",
    "ttft_limit_ms": 900.0,
    "arms": {
        arm: {
            "sustainable_qps": qps,
            "points": [
                POINT | {"qps": rate, "ttft_ms": {"median": 90.0, "p90": 100.0 * rate, "p99": 300.0}}
                for rate in (qps, 2 * qps)
            ],
        }
        for arm, qps in (("prefix", 2.0), ("hypic", 7.5))
    },
}
RUN = {"ttft_ms": 900.0, "dispatch_ms": 700.0, "transfer_ms": 20.0, "combine_ms": 150.0, "lower_bound_ms": 650.0}
SCATTER = {
    "runs": [
        RUN | {"mix": mix, "workers": workers, "policy": policy, "simulated": workers > 2}
        for mix in ("even", "uneven")
        for workers in (1, 8)
        for policy in ("lpt", "round_robin")
    ]
}
FIDELITY = {
    "layers": [
        {"index": index, "kind": kind, "arm": arm, "relative_l2": 10.0 ** (index - 7), "angle_degrees": 1.0}
        for index, kind in enumerate(("linear", "full", "linear"))
        for arm in ("transition", "hypic")
    ],
    "seams": [
        {
            "w": tokens,
            "anchored": anchored,
            "kl_nats": 0.02 / (1 + tokens),
            "layers": [{"index": index, "kind": "linear", "relative_l2": 0.4 / (1 + tokens)} for index in (0, 2)],
        }
        for anchored in (False, True)
        for tokens in (0, 4, 8, 16, 32)
    ],
}
CACHE = {
    "hit_rate": {"ragpulse": {"lru": {"1/4": 0.6, "1/4+host": 0.9, "1/1": 0.88}, "cost": {"1/4": 0.7, "1/1": 0.88}}}
}
RESULTS: dict[str, dict[str, Any]] = {
    "eval quality": QUALITY,
    "bench ttft": TTFT,
    "bench serve": SERVE,
    "bench scatter": SCATTER,
    "eval fidelity": FIDELITY,
    "bench compose": {"warm_segment_ms": 2.3, "recompute_segment_ms": 140.0, "more": [1]},
    "bench transition": {"overhead_percent": 1.5, "bytes_per_segment": {"tiny": {"float32": 2**27, "mixed": 2**24}}},
    "bench cache": CACHE,
    "eval algebra": {"limit": 2e-6, "families": {"gla": {"max_relative_error": 1e-7}}},
    "eval parity": {"limit": 1e-4, "architectures": {"qwen3_5": {"max_abs_logit_diff": 0.0}}},
    "bench kernels": {"kernels": {"chunk_scan": {"ms": 1.25}}},
}
CHAPTER = {
    "eval quality": "Quality",
    "bench ttft": "Warm time to the first token",
    "bench serve": "Load",
    "bench scatter": "Cold prompts on several workers",
    "eval fidelity": "Drift by layer",
    "bench compose": "One more document",
    "bench transition": "Transition operators",
    "bench cache": "Cache",
    "eval algebra": "Agreement",
    "eval parity": "Agreement",
    "bench kernels": "Other results",
}


def write(folder: Path, command: str, results: Any, name: str = "", date: str = "2026-11-30T10:00:00+00:00") -> None:
    envelope = {"command": f"hypic {command}", "commit": "abc123def0", "device": "cpu: one core", "model": "a <model>"}
    text = json.dumps(envelope | {"date": date, "results": results})
    (folder / f"{name or command.replace(' ', '-')}.json").write_text(text)


class Page(HTMLParser):
    """What a page refers to, its names, captions and images."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.references: list[str] = []
        self.ids: list[str] = []
        self.tags: list[str] = []
        self.labels: list[str] = []
        self.captions: list[str] = []
        self._in_caption = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("href", "src", "srcset", "xlink:href", "data", "action"):
                self.references.append(value or "")
            if name == "id":
                self.ids.append(value or "")
            if tag == "svg" and name == "aria-label":
                self.labels.append(value or "")
        if tag == "figcaption":
            self._in_caption = True
            self.captions.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in_caption = self._in_caption and tag != "figcaption"

    def handle_data(self, data: str) -> None:
        if self._in_caption:
            self.captions[-1] += data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("results")
    for command, results in RESULTS.items():
        write(path, command, results)
    run_eval_report(path)
    return path


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text())


def test_every_chapter_is_filled(folder: Path) -> None:
    report = run_eval_report(folder)
    assert all(report.results["sections"].values()), report.results["sections"]
    assert report.results["figures"] == 14
    assert set(CHAPTER.values()) | {"Quality against time", "Seam"} == set(report.results["sections"])


def test_the_page_needs_nothing_else(folder: Path, page: Page) -> None:
    text = (folder / "report.html").read_text()
    assert page.references
    assert all(reference.startswith("#") for reference in page.references), page.references
    assert {reference[1:] for reference in page.references} <= set(page.ids)
    assert not {"script", "link", "img", "iframe", "object", "image"} & set(page.tags)
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    assert "@import" not in text
    assert set(re.findall(r'https?://[^"\s]*', text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert len(set(page.ids)) == len(page.ids)


def test_every_figure_has_a_text_and_its_source(page: Page) -> None:
    assert len(page.captions) == len(page.labels) == page.tags.count("svg") == 14
    for caption in page.captions:
        for part in ("model a <model>", "device cpu: one core", "commit abc123def0", "2026-11-30"):
            assert part in caption
    for label in page.labels:
        assert re.search(r"\d", label), f"figures for those who do not see the picture: {label}"


def test_text_of_the_plots_follows_the_page(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    assert "currentColor" in text
    assert "#0a0b0c" not in text
    assert "prefers-color-scheme: dark" in text


def test_markdown_has_the_same_figures(folder: Path) -> None:
    text = (folder / "report.md").read_text()
    for found in ("| prefix | held | 2.00 |", "80.0 times as fast", "ragpulse", "1.25", "a <model>"):
        assert found in text


@pytest.mark.parametrize("command", RESULTS)
def test_each_command_alone_fills_its_chapter(tmp_path: Path, command: str) -> None:
    write(tmp_path, command, RESULTS[command])
    sections = run_eval_report(tmp_path).results["sections"]
    assert sections[CHAPTER[command]]
    assert not sections["Quality against time"]
    assert "run <code>hypic " in (tmp_path / "report.html").read_text()


def test_results_of_another_form_are_said(tmp_path: Path) -> None:
    write(tmp_path, "bench serve", {"arms": {}})
    write(tmp_path, "bench ttft", TTFT)
    assert not run_eval_report(tmp_path).results["sections"]["Load"]
    said = "Not here: the results of `hypic bench serve` have another form (KeyError: 'ttft_limit_ms'); run it again."
    assert said in (tmp_path / "report.md").read_text()


def test_fidelity_without_a_sweep_says_so(tmp_path: Path) -> None:
    write(tmp_path, "eval fidelity", {"layers": FIDELITY["layers"]})
    sections = run_eval_report(tmp_path).results["sections"]
    assert sections["Drift by layer"]
    assert not sections["Seam"]


def test_the_newest_counts_and_what_is_no_result_is_named(tmp_path: Path) -> None:
    write(tmp_path, "bench ttft", TTFT, "old", "2026-01-01T00:00:00+00:00")
    write(tmp_path, "bench ttft", TTFT | {"speedup": 7.0}, "new")
    (tmp_path / "other.json").write_text("[1]")
    report = run_eval_report(tmp_path)
    assert "7.0 times" in (tmp_path / "report.md").read_text()
    assert report.results["foreign"] == ["other.json"]


def test_a_folder_without_results_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["eval", "report", str(tmp_path)])
    assert ended.value.code == 2
    assert "no results in" in capsys.readouterr().err
    with pytest.raises(InvalidRequestError, match="is no folder"):
        read_folder(tmp_path / "nowhere")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(InvalidRequestError, match=r"broken.json is not JSON"):
        read_folder(tmp_path)
