"""Hooks of mkdocs: generated pages, links into the repository, the drawn state machine, and `llms.txt`."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))
import reference

SOURCE = "https://github.com/lcm-project/lcm"
"""The repository, for links to files that are no pages."""

PROJECT = {name: f"project/{name.lower()}" for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")}
PROJECT |= {name: f"project/{name.lower()}" for name in ("SECURITY.md", "STYLE.md")}
"""Pages of the root directory, and their places on the site."""

ORIGINS = {place: name for name, place in PROJECT.items()}

_texts: dict[str, str] = {}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages, and those of the root directory."""
    _texts.clear()
    for place, text in reference.pages().items():
        files.append(File.generated(config, place, content=text))
    for name, place in PROJECT.items():
        files.append(File.generated(config, place, content=reference.read(reference.ROOT / name)))
    return files


def origin(place: str) -> str:
    """Returns the path of a page in the repository."""
    return ORIGINS.get(place) or f"docs/{place}"


def link(target: str, place: str, files: Files) -> str:
    """Returns a link of a page as the site needs it. A file that is no page is linked in the repository."""
    if re.match(r"[a-z]+:|#", target):
        return target
    path, mark, anchor = target.partition("#")
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(origin(place)), path))
    on_site = PROJECT.get(wanted) or wanted.removeprefix("docs/")
    is_page = wanted in PROJECT or (wanted.startswith("docs/") and files.get_file_from_path(on_site) is not None)
    if is_page:
        return posixpath.relpath(on_site, posixpath.dirname(place) or ".") + mark + anchor
    file = reference.ROOT / wanted
    if not file.exists():
        raise PluginError(f"{origin(place)} links to {target}, which is neither a page nor a file of the repository")
    return f"{SOURCE}/{'tree' if file.is_dir() else 'blob'}/main/{wanted}{mark}{anchor}"


def outside_of_code(text: str, change: Any) -> str:
    """Applies a change to the parts of a page that are no code blocks."""
    parts = re.split(r"(^```.*?^```$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else change(part) for part in parts)


def with_sentences(text: str) -> str:
    """Adds the sentence of each reason code below its heading."""
    sentences = reference.reason_sentences()
    return re.sub(r"^### (\w+)$", lambda found: f"### {found[1]}\n\n> {sentences[found[1]]}", text, flags=re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    place = page.file.src_uri
    if place == "reference/reasons.md":
        markdown = with_sentences(markdown)
    if place == "lifecycle.md":
        # A drawing instead of a diagram that a script would have to draw in the browser.
        drawn = "![The statuses of a worker and the transitions that LCM commands](lifecycle.svg)"
        table = "The page [Transitions](reference/transitions.md) lists all of them."
        markdown = re.sub(r"^```mermaid\n.*?^```$", f"{drawn}\n\n{table}", markdown, flags=re.MULTILINE | re.DOTALL)
    rewritten = outside_of_code(
        markdown,
        lambda part: re.sub(r"\]\(([^)\s]+)\)", lambda found: f"]({link(found[1], place, files)})", part),
    )
    _texts[place] = rewritten
    return rewritten


def on_post_build(config: MkDocsConfig) -> None:
    """Writes `llms.txt`, an index of all pages for language models, and each page as Markdown beside its HTML."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", ""]
    for page, section in _pages:
        if section and f"## {section}" not in lines:
            lines += ["", f"## {section}", ""]
        text = _texts[page.file.src_uri]
        about = next((line for line in text.splitlines() if re.match(r"[A-Z`].*", line)), "")
        about = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", about).strip()
        lines.append(f"- [{page.title}]({config.site_url}{page.file.src_uri}): {about}")
        copy = site / page.file.src_uri
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text, encoding="utf-8")
    (site / "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


_pages: list[tuple[Page, str]] = []


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Remembers the pages with the titles of their sections, in order."""
    _pages[:] = [(page, next((section.title or "" for section in page.ancestors), "")) for page in nav.pages]
    return nav
