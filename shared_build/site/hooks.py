"""mkdocs hooks: the operators' pages, folders in the navigation, the table of operators, charts.

A new package or a new page needs no edit of ``mkdocs.yml``: a navigation entry that ends with ``/`` stands
for the pages of that folder, and ``operators/`` for the pages of every package.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

# mkdocs loads this file by its path, whatever the working directory.
if (_HERE := str(Path(__file__).resolve().parents[2])) not in sys.path:
    sys.path.insert(0, _HERE)
from shared_build.site import figures, pages

OPERATOR_TABLE = "<!-- operator-table -->"
_state: dict[str, bool] = {}


def _root(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path or "mkdocs.yml").resolve().parent


def _folder_pages(root: Path, folder: str) -> list[Any]:
    """Return the pages of ``docs/<folder>/``, the index first, then by name."""
    found = sorted(
        (root / "docs" / folder).glob("*.md"), key=lambda path: (path.name != "index.md", path.name)
    )
    return [f"{folder}{path.name}" for path in found]


def _expand(root: Path, entries: list[Any]) -> list[Any]:
    expanded: list[Any] = []
    for entry in entries:
        if not isinstance(entry, dict):
            expanded.append(entry)
            continue
        ((title, value),) = entry.items()
        if isinstance(value, list):
            value = _expand(root, value)
        elif value == "operators/":
            value = [*_folder_pages(root, value), *({p.name: p.nav()} for p in pages.packages(root))]
        elif value.endswith("/"):
            value = _folder_pages(root, value)
        if value:
            expanded.append({title: value})
    return expanded


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Expand the folders of the navigation, and watch the packages while serving."""
    root = _root(config)
    config.nav = _expand(root, config.nav or [])
    config.watch = [*config.watch, *(str(package.folder) for package in pages.packages(root))]
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and pictures of every package."""
    for package in pages.packages(_root(config)):
        for place, path in package.sources():
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files


def _operator_table(root: Path, place: str) -> str:
    depth = "../" * place.count("/")
    rows = ["| operator | what it computes | version |", "|---|---|---|"]
    for package in pages.packages(root):
        project = package.project
        link = f"[{package.name}]({depth}operators/{package.name}/index.md)"
        rows.append(f"| {link} | {project.get('description', '')} | {project.get('version', '')} |")
    return "\n".join(rows)


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Carry links over from the repository to the site, and fill in the table of operators and the charts."""
    root = _root(config)
    place = page.file.src_uri
    source = Path(page.file.abs_src_path or "").resolve().relative_to(root).as_posix()
    text = pages.rewrite_links(markdown, source, place, root, config.repo_url)
    if OPERATOR_TABLE in text:
        text = text.replace(OPERATOR_TABLE, _operator_table(root, place))
    parts = place.split("/")
    operator = parts[1] if parts[0] == "operators" and len(parts) > 2 else None
    return figures.fill(text, root, operator)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let wide tables scroll by themselves, and show the roles of docstrings as what they name."""
    html = re.sub(r"(?s)<table>(.*?)</table>", r'<div class="ow-table"><table>\1</table></div>', html)
    html = re.sub(r":(?:func|class|meth|mod|attr):(?=<code>)", "", html)
    return figures.colours() + html if 'class="ow-chart"' in html else html


def on_startup(*, command: str, dirty: bool) -> None:
    """Remember whether the site is built once or shown while it is written."""
    _state["publish"] = command == "build"


def on_post_build(*, config: MkDocsConfig) -> None:
    """Add asv's pages of the packages whose results are committed."""
    root = _root(config)
    for package in pages.packages(root):
        if _state.get("publish") and figures.filed(root, package.name):
            target = Path(config.site_dir) / "benchmarks" / "asv" / package.name
            try:
                figures.publish(root, package.name, target)
            except RuntimeError as error:
                raise PluginError(str(error)) from error
