"""The documentation site: built strictly, complete, readable without a network, and open to new packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from shared_build.site import figures, pages

ROOT = Path(__file__).resolve().parents[3]


def _build(root: Path, target: Path) -> subprocess.CompletedProcess[str]:
    # Not --quiet: it hides the warnings from the counter that makes --strict fail.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(target)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("site")
    done = _build(ROOT, target)
    assert done.returncode == 0, done.stdout + done.stderr
    return target


class _Fetched(HTMLParser):
    """Collect what a browser fetches by itself when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if tag in ("script", "img", "iframe", "source", "video"):
            self.urls.append(values.get("src", ""))
        elif tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.urls.append(values.get("href", ""))


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    found = {}
    for path in site.rglob("*.html"):
        parser = _Fetched()
        parser.feed(path.read_text(encoding="utf-8"))
        outside = [url for url in parser.urls if re.match(r"(?:https?:)?//", url)]
        if outside:
            found[path.relative_to(site).as_posix()] = outside
    assert found == {}


def test_no_style_fetches_anything_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.css"):
        assert (
            re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^)\s]+", path.read_text(encoding="utf-8"))
            == []
        )


def test_every_package_has_its_pages(site: Path) -> None:
    packages = pages.packages(ROOT)
    assert packages, "no package has documents"
    for package in packages:
        for name in pages.ORDER:
            assert (site / "operators" / package.name / name.replace(".md", ".html")).is_file()
        assert (site / "operators" / package.name / "changelog.html").is_file()


def test_home_lists_every_package(site: Path) -> None:
    home = (site / "index.html").read_text(encoding="utf-8")
    for package in pages.packages(ROOT):
        assert f'href="operators/{package.name}/index.html"' in home
        assert package.project["version"] in home


def test_api_pages_hold_every_public_function(site: Path) -> None:
    for package in pages.packages(ROOT):
        module = (package.folder / "src" / "opwright" / package.name / "__init__.py").read_text(
            encoding="utf-8"
        )
        listing = re.search(r"^__all__\s*=\s*\[(.*?)\]", module, re.MULTILINE | re.DOTALL)
        assert listing is not None
        page = (site / "operators" / package.name / "api.html").read_text(encoding="utf-8")
        for name in re.findall(r'"(\w+)"', listing.group(1)):
            assert f'id="opwright.{package.name}.{name}"' in page, name


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Make a small repository: the real hooks and configuration, one page of each kind, one package."""
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "shared_build" / "site", tmp_path / "shared_build" / "site")
    shutil.copytree(ROOT / "docs" / "assets", tmp_path / "docs" / "assets")
    config = (tmp_path / "mkdocs.yml").read_text(encoding="utf-8")
    for name in re.findall(r": ([\w/-]+(?:\.md|/))$", config.partition("\nnav:")[2], re.MULTILINE):
        page = tmp_path / "docs" / (name + "index.md" if name.endswith("/") else name)
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# {name}\n")
    add_package(tmp_path, "first")
    return tmp_path


def add_package(root: Path, name: str) -> Path:
    """Write the documents, metadata and one public function of a package called ``name``."""
    folder = root / "packages" / name
    (folder / "docs").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        f'[project]\nname = "opwright-{name}"\nversion = "0.3.0"\ndescription = "Computes {name}"\n'
    )
    (folder / "CHANGELOG.md").write_text("# Changes\n\n## 0.3.0\n")
    for page in pages.ORDER:
        (folder / "docs" / page).write_text(f"# {name} {page}\n")
    (folder / "docs" / "api.md").write_text(f"# API\n\n::: opwright.{name}.run\n")
    source = folder / "src" / "opwright" / name
    source.mkdir(parents=True)
    (source / "__init__.py").write_text(
        f'"""{name}."""\n\n\ndef run() -> int:\n    """Run {name} once."""\n    return 1\n'
    )
    return folder


def test_a_new_package_appears_without_an_edit(small: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    add_package(small, "second")
    (small / "docs" / "index.md").write_text("# Home\n\n<!-- operator-table -->\n")
    target = tmp_path_factory.mktemp("built")
    done = _build(small, target)
    assert done.returncode == 0, done.stdout + done.stderr
    home = (target / "index.html").read_text(encoding="utf-8")
    assert "Computes second" in home
    api = (target / "operators/second/api.html").read_text(encoding="utf-8")
    assert "Run second once." in api


def test_a_broken_link_stops_the_build(small: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (small / "packages/first/docs/design.md").write_text("# D\n\nSee [that](../../../docs/nowhere.md).\n")
    done = _build(small, tmp_path_factory.mktemp("built"))
    assert done.returncode != 0
    assert "nowhere.md" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("source", "link", "expected"),
    [
        ("packages/first/docs/design.md", "[a](../../../docs/index.md#x)", "[a](../../index.md#x)"),
        ("packages/first/docs/design.md", "[a](api.md)", "[a](api.md)"),
        ("packages/first/docs/design.md", "[a](../CHANGELOG.md)", "[a](changelog.md)"),
        ("docs/index.md", "[`a`](../packages/first/docs/api.md)", "[`a`](operators/first/api.md)"),
        ("docs/index.md", "[a](../mkdocs.yml)", "[a](https://example.org/r/blob/main/mkdocs.yml)"),
        ("docs/index.md", "[a](https://example.org)", "[a](https://example.org)"),
        ("docs/index.md", "[a](#here)", "[a](#here)"),
        ("docs/index.md", "```\n[a](../mkdocs.yml)\n```", "```\n[a](../mkdocs.yml)\n```"),
    ],
)
def test_links_are_carried_over(small: Path, source: str, link: str, expected: str) -> None:
    place = pages.place_of(source)
    assert place is not None
    assert pages.rewrite_links(link, source, place, small, "https://example.org/r") == expected


def test_a_link_to_a_source_is_plain_text_where_no_repository_is_known(small: Path) -> None:
    assert pages.rewrite_links("[a](../mkdocs.yml)", "docs/index.md", "index.md", small) == "a"


def test_pages_of_a_package_are_in_reading_order(small: Path) -> None:
    (small / "packages/first/docs/extra.md").write_text("# Extra\n")
    names = [place.rsplit("/", 1)[1] for place in pages.packages(small)[0].nav()]
    assert names == [*pages.ORDER, "extra.md", "changelog.md"]


def add_results(root: Path, operator: str) -> None:
    """Write figures of one case, and the case's title where the charts look for it."""
    ratios = {"eager": {"ratio": 3.0, "low": 2.9, "high": 3.1}}
    cells = [
        {"case": "forward", "shape": shape, "dtype": "fp32", "threads": 1, "ratios": ratios}
        for shape in ("64x4096", "4096x4096")
    ]
    report = {
        "machine": {"cpu": "A <fast> CPU", "threads": 2},
        "versions": {"torch": "2.13.0", "kernel_level": "avx2"},
        "conditions": [],
        "date": "2026-11-30T12:00:00+00:00",
        "command": "python -m measure",
        "cells": cells,
    }
    folder = root / "docs" / "benchmarks" / "results" / operator
    folder.mkdir(parents=True)
    (folder / "machine.json").write_text(json.dumps(report))
    cases = root / "packages" / operator / "benchmarks" / "cases.py"
    cases.parent.mkdir()
    cases.write_text('import torch\n\nCASES = [Case(name="forward", title="A forward pass", make=None)]\n')


def test_charts_are_drawn_from_committed_results(
    small: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    add_results(small, "first")
    (small / "packages/first/docs/performance.md").write_text("# P\n\n<!-- charts -->\n\nAfter *them*.\n")
    (small / "docs/index.md").write_text(
        "# Home\n\n<!-- charts: first forward-1 -->\n\n<!-- charts: first other -->\n"
    )
    target = tmp_path_factory.mktemp("built")
    done = _build(small, target)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (target / "operators/first/performance.html").read_text(encoding="utf-8")
    assert "A forward pass, 1 thread" in page
    assert "A &lt;fast&gt; CPU" in page
    assert "<em>them</em>" in page
    assert '[data-md-color-scheme="slate"] .ow-chart' in page
    home = (target / "index.html").read_text(encoding="utf-8")
    assert home.count('<svg class="ow-chart"') == 1
    assert "<!-- charts" not in home + page


def test_a_page_without_results_shows_no_chart(small: Path) -> None:
    assert figures.fill("a <!-- charts --> b", small, "first") == "a  b"
    assert figures.fill("a <!-- charts: first forward-1 --> b", small, None) == "a  b"
    assert figures.fill("a <!-- charts --> b", small, None) == "a  b"


def test_results_of_asv_that_cannot_be_published_stop_the_build(
    small: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = small / "docs" / "benchmarks" / "results" / "first" / "asv"
    folder.mkdir(parents=True)
    (folder / "benchmarks.json").write_text("not what asv wrote")
    (small / "packages/first/docs/performance.md").write_text("# P\n\n<!-- charts -->\n")
    assert "benchmarks/asv/first/index.html" in figures.fill("<!-- charts -->", small, "first")
    done = _build(small, tmp_path_factory.mktemp("built"))
    assert done.returncode != 0
    assert "asv publish ended with" in done.stdout + done.stderr


def test_titles_are_read_without_importing(tmp_path: Path) -> None:
    path = tmp_path / "cases.py"
    path.write_text(
        'raise RuntimeError\nx = [Case(name="a", title="A"), Case(name="b"), other(name="c", title="C")]\n'
    )
    assert figures.titles(path) == {"a": "A"}
