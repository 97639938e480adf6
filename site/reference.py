"""Reference pages of the documentation site, read from the Rust, Python and OpenAPI sources.

The pages are written while the site is built and are not committed, so they cannot be older than the sources. Every
function returns Markdown. A source that no longer has the expected form is an error, not a shorter page.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
SDK = ROOT / "lcm-sdk" / "src"
FAKE = ROOT / "fake-cloud" / "src"
PACKAGE = ROOT / "lcm-py" / "python" / "lcm"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a Markdown table, with bars in its cells escaped."""
    if not rows:
        raise ValueError(f"no rows for the columns {', '.join(head)}: the source has another form than expected")
    lines = [head, tuple("---" for _ in head), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join("| " + " | ".join(line) + " |" for line in cells) + "\n"


def code(text: str) -> str:
    return f"`{text}`"


# Reasons, transitions and events, from the lifecycle.


def reason_sentences() -> dict[str, str]:
    """Return the sentence of every reason code, in the order of the enum."""
    rows = re.findall(r'^\s+\w+ = "(\w+)", "(.*)";$', read(SDK / "lifecycle" / "reason.rs"), re.MULTILINE)
    return dict(rows)


def transitions() -> list[tuple[str, str, str, str]]:
    """Return the rows of the transition table: from, to, kind and condition."""
    rows = re.findall(
        r'^    (commanded|observed)\((\w+), (\w+), "(.*)"\),$', read(SDK / "lifecycle" / "transition.rs"), re.MULTILINE
    )
    return [(before.lower(), after.lower(), kind, when) for kind, before, after, when in rows]


def transitions_page() -> str:
    rows = [(code(before), code(after), kind, when) for before, after, kind, when in transitions()]
    return (
        "# Transitions\n\nThe table of all legal transitions. LCM causes the commanded ones; of the observed ones EC2"
        " is the cause, and the record follows. No decision takes any other edge.\n\n"
        + table(("from", "to", "kind", "when"), rows)
    )


def doc_comment(lines: list[str]) -> str:
    return " ".join(line.strip().removeprefix("///").strip() for line in lines)


def events_page() -> str:
    source = read(SDK / "lifecycle" / "event.rs")
    body = source[source.index("pub enum Event {") : source.index("impl Event {")]
    documented: dict[str, tuple[str, list[tuple[str, str]]]] = {}
    docs: list[str] = []
    variant = ""
    for line in body.splitlines()[1:]:
        if line.strip().startswith("///"):
            docs.append(line)
        elif found := re.match(r"    (\w+)( \{|,)$", line):
            variant = found[1]
            documented[variant] = (doc_comment(docs), [])
            docs = []
        elif found := re.match(r"        (\w+): .*,$", line):
            documented[variant][1].append((found[1], doc_comment(docs)))
            docs = []
    types = re.findall(r'Self::(\w+)(?: \{ \.\. \})? => "(cml_worker[\w.]+)",', source)
    licenses = re.findall(r'LicenseReport::(\w+) => "(cml_worker[\w.]+)",', source)
    if set(documented) != {name for name, _ in types} | {"License"}:
        raise ValueError("event.rs has another form than expected")
    rows = []
    for name, kind in types:
        about, fields = documented[name]
        rows.append((code(kind), about, "; ".join(f"`{field}`: {text.rstrip('.')}" for field, text in fields)))
    for name, kind in licenses:
        words = re.sub(r"(?<!^)([A-Z])", r" \1", name).lower()
        rows.append((code(kind), f"A license operation made progress: {words}.", ""))
    return (
        "# Events\n\nEvents are CloudEvents that the reconciler publishes after the record is written. A dropped event"
        " changes nothing: the record is the source of truth.\n\n" + table(("type", "when", "data"), rows)
    )


# The fake cloud.


def json_bodies(source: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of `json!({…})` in functions named `help`."""
    for body in re.findall(r"fn help\(\).*?json!\((\{.*?\n    \})\)", source, re.DOTALL):
        yield json.loads(re.sub(r",(\s*\})", r"\1", body))


def admin_page() -> str:
    routes: dict[str, Any] = {}
    for file in ("mod.rs", "disruption.rs"):
        for body in json_bodies(read(FAKE / "admin" / file)):
            routes |= body
    console = read(FAKE / "admin" / "ui" / "mod.rs")
    [listed] = re.findall(r"fn help\(\).*?\{(.*?)\n\}", console, re.DOTALL)
    for route, about in re.findall(r'\(\s*"((?:GET|POST|DELETE) [^"]+)",\s*"((?:\\.|[^"\\])*)",?\s*\)', listed):
        routes[route] = about.replace('\\"', '"')
    rows = []
    for route, about in routes.items():
        method, path = route.split(" ", 1)
        is_body = isinstance(about, dict)
        rows.append((method, code(path), code(json.dumps(about, ensure_ascii=False)) if is_body else about))
    return (
        "# Admin API of the fake cloud\n\nThe admin API has the address of EC2 (`AWS_ENDPOINT_URL`). It moves the"
        " clock, injects faults, lists requests, and acts like a person in the AWS console. `GET /_fake/` returns this"
        " list. JSON is an example of the request body.\n\n" + table(("method", "path", "body, or response"), rows)
    )


def ec2_rows() -> list[tuple[str, ...]]:
    actions = re.findall(r'^        "(\w+)" => \w+::', read(FAKE / "ec2" / "mod.rs"), re.MULTILINE)
    parameters: dict[str, list[str]] = {}
    current: list[str] = []
    for line in read(FAKE / "ec2" / "parameters.txt").splitlines():
        if line and not line.startswith((" ", "#")):
            current = parameters.setdefault(line.strip(), [])
        elif line.startswith(" "):
            current.append(line.strip())
    rows: list[tuple[str, ...]] = []
    for action in sorted(actions):
        known = parameters.get(action, [])
        refused = [line.split(" ! ") for line in known if " ! " in line]
        shown = ", ".join(sorted({code(name) for name, _ in refused})) or "none"
        rows.append((code(action), str(len(known) - len(refused)), shown))
    return rows


def compatibility_page() -> str:
    cloudwatch = re.findall(r'^            "(\w+)" => \w+::', read(FAKE / "cloudwatch" / "mod.rs"), re.MULTILINE)
    sts = re.findall(r'^        "(\w+)" => ', read(FAKE / "sts.rs"), re.MULTILINE)
    other = [(code(action), "CloudWatch") for action in cloudwatch] + [(code(action), "STS") for action in sts]
    gateway = read(FAKE / "etcd" / "gateway" / "mod.rs")
    calls: dict[str, list[str]] = {}
    for path, call in re.findall(r'"(/v3/[^"]+)",\s*"/([\w.]+/\w+)"', gateway):
        calls.setdefault(call, []).append(code(path))
    etcd = [(code(call), ", ".join(paths)) for call, paths in calls.items()]
    cml: list[tuple[str, ...]] = []
    for file in sorted((FAKE / "cml" / "http").glob("*.rs")):
        for endpoint in read(file).split("Endpoint::new(")[1:]:
            if found := re.match(r'\s*"\w+",\s*(\w+),\s*"([^"]+)"', endpoint):
                since, before = (re.search(rf"\.{limit}\(Release::V(\w+)\)", endpoint) for limit in ("since", "before"))
                limits = [
                    f"{word} {mark[1].replace('_', '.')}"
                    for word, mark in (("from", since), ("before", before))
                    if mark
                ]
                cml.append((found[1], code(f"/api/v0{found[2]}"), " ".join(limits) or "all"))
    return "\n".join(
        (
            "# Calls that the fake cloud serves",
            "",
            "A call that is not listed fails with the error of the real service for an unknown action; nothing returns"
            " success without doing its work. The contracts of the control plane are on pages of their own:"
            " [original](control-plane-original.md) and [extended](control-plane-extended.md).",
            "",
            "## EC2",
            "",
            "Parameters are named as in the API model of EC2. A refused parameter fails with an error code instead of"
            " being ignored.",
            "",
            table(("action", "parameters honored", "parameters refused"), ec2_rows()),
            "## CloudWatch and STS",
            "",
            table(("action", "service"), other),
            "## etcd",
            "",
            "The calls below are served as gRPC and, under the given paths, as JSON."
            " [An etcd in memory](../fake-etcd.md) states the differences from a real server.",
            "",
            table(("call", "path of the JSON gateway"), etcd),
            "## CML",
            "",
            table(("method", "path", "releases of CML"), cml),
        )
    )


# HTTP contracts.


class Contract:
    """An OpenAPI document as Markdown."""

    def __init__(self, file: Path) -> None:
        self.document: dict[str, Any] = yaml.safe_load(read(file))

    def resolve(self, node: dict[str, Any]) -> dict[str, Any]:
        while "$ref" in node:
            found: Any = self.document
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            node = found
        return node

    def type(self, schema: dict[str, Any] | bool) -> str:
        """Return a schema in a few words, with links to named ones."""
        if isinstance(schema, bool):
            return "any" if schema else "nothing"
        if reference := schema.get("$ref"):
            name = reference.rsplit("/", 1)[1]
            return f"[{name}](#{name.lower()})"
        if options := schema.get("oneOf") or schema.get("anyOf") or schema.get("allOf"):
            joint = " and " if "allOf" in schema else " or "
            return joint.join(self.type(option) for option in options)
        kinds = schema.get("type", "any")
        words = [kinds] if isinstance(kinds, str) else list(kinds)
        if "array" in words and "items" in schema:
            words[words.index("array")] = f"list of {self.type(schema['items'])}"
        if schema.get("format"):
            words[0] += f" ({schema['format']})"
        text = " or ".join(words)
        if values := schema.get("enum"):
            text += ": " + ", ".join(code(str(value)) for value in values)
        if "const" in schema:
            text += ": " + code(str(schema["const"]))
        return text

    def fields(self, schema: dict[str, Any]) -> str:
        required = set(schema.get("required", ()))
        rows = []
        for name, field in schema.get("properties", {}).items():
            about = "" if isinstance(field, bool) else field.get("description", "")
            mark = "yes" if name in required else ""
            rows.append((code(name), self.type(field), mark, " ".join(about.split())))
        return table(("field", "type", "required", "meaning"), rows) if rows else ""

    def body(self, content: Mapping[str, Any]) -> Iterator[str]:
        for media in content.values():
            schema = media.get("schema", {})
            if fields := self.fields(schema):
                yield fields
            else:
                yield f"Body: {self.type(schema)}.\n"

    def operation(self, method: str, path: str, shared: list[Any], operation: dict[str, Any]) -> Iterator[str]:
        yield f"### {method.upper()} `{path}` {{#{operation['operationId']}}}\n"
        yield " ".join((operation.get("summary", ""), operation.get("description", ""))).strip() + "\n"
        parameters = [self.resolve(parameter) for parameter in [*shared, *operation.get("parameters", [])]]
        rows = []
        for one in parameters:
            about = " ".join(one.get("description", "").split())
            rows.append((code(one["name"]), one["in"], self.type(one.get("schema", {})), about))
        if rows:
            yield table(("parameter", "in", "type", "meaning"), rows)
        if "requestBody" in operation:
            yield from self.body(self.resolve(operation["requestBody"])["content"])
        responses = []
        for status, response in operation["responses"].items():
            response = self.resolve(response)
            kinds = [self.type(media.get("schema", {})) for media in response.get("content", {}).values()]
            responses.append((str(status), " ".join(response.get("description", "").split()), " or ".join(kinds)))
        yield table(("status", "meaning", "body"), responses)

    def page(self) -> str:
        info = self.document["info"]
        parts = [f"# {info['title']}\n", f"{info.get('summary', '')}\n", info.get("description", ""), "## Requests\n"]
        for path, item in self.document["paths"].items():
            shared = item.get("parameters", [])
            for method in ("get", "post", "put", "patch", "delete"):
                if method in item:
                    parts.extend(self.operation(method, path, shared, item[method]))
        parts.append("## Schemas\n")
        for name, schema in self.document["components"]["schemas"].items():
            parts.append(f"### {name}\n")
            if about := schema.get("description"):
                parts.append(about.strip() + "\n")
            parts.append(self.fields(schema) or f"Type: {self.type(schema)}.\n")
        return "\n".join(parts)


# The command `lcm`, from the definitions that clap turns into its help.


class CommandLine:
    """The subcommands of `lcm` with their options and examples."""

    def __init__(self, source: str) -> None:
        self.structs = dict(re.findall(r"struct (\w+) \{\n(.*?)\n\}", source, re.DOTALL))
        self.enums = dict(re.findall(r"enum (\w+) \{\n(.*?)\n\}", source, re.DOTALL))
        texts = re.findall(r'const (\w+): &str = "\\\n(.*?)";', source, re.DOTALL)
        self.texts = {name: text.replace('\\"', '"') for name, text in texts}

    def fields(self, body: str) -> Iterator[tuple[str, str, str]]:
        """Yield the documentation, the attributes and the declaration of each field or variant of a body."""
        docs: list[str] = []
        attributes: list[str] = []
        for line in (line.strip() for line in body.splitlines()):
            if line.startswith("///"):
                docs.append(line)
            elif line.startswith("#["):
                attributes.append(line)
            elif found := re.match(r"(?:pub\(crate\) )?(\w+.*)", line):
                yield doc_comment(docs), " ".join(attributes), found[1]
                docs, attributes = [], []

    def options(self, body: str) -> Iterator[tuple[str, str]]:
        """Yield the options and arguments of a command with their meaning."""
        for about, attributes, declared in self.fields(body):
            name, _, kind = declared.rstrip(",").partition(": ")
            if "command(flatten)" in attributes:
                yield from self.options(self.structs.get(kind, ""))
            elif kind:
                spelled = name.replace("_", "-")
                value = re.search(r'value_name = "(\w+)"', attributes)
                shown = value[1] if value else spelled.upper()
                if re.search(r"\blong\b", attributes):
                    short = f"-{spelled[0]}, " if re.search(r"\bshort\b", attributes) else ""
                    yield code(f"{short}--{spelled}" + ("" if kind == "bool" else f" {shown}")), about
                else:
                    yield code(shown), about

    def command(self, path: str, variant: tuple[str, str, str], body: str) -> Iterator[str]:
        about, attributes, declared = variant
        name = re.sub(r"(?<!^)([A-Z])", r"-\1", re.split(r"\W", declared)[0]).lower()
        yield f"## {path} {name} {{#{path.replace(' ', '-')}-{name}}}\n\n{about}\n"
        wrapped = re.search(r"\((\w+)\)", declared)
        rows = list(self.options(self.structs.get(wrapped[1], "") if wrapped else body))
        if rows:
            yield table(("option or argument", "meaning"), rows)
        found = re.search(r"after_(?:long_)?help = (\w+)", attributes)
        if found and found[1] in self.texts:
            yield f"```text\n{self.texts[found[1]]}\n```\n"

    def page(self) -> str:
        parts = [
            "# Options of the command lcm\n",
            "Every command with its options, from the definitions of its `--help`. [The command `lcm`](../command.md)"
            " shows how they work together.\n",
            f"```text\n{self.texts['EXIT_CODES']}\n```\n",
        ]
        # A variant with fields of its own spans several lines: its fields follow the opening brace.
        variants = re.split(r"\n(?=    ///)(?<=[,}]\n)", self.enums["Command"])
        for text in variants:
            head, _, body = text.partition(" {\n")
            parsed = list(self.fields(head))
            if parsed:
                parts.extend(self.command("lcm", parsed[0], body))
        return "\n".join(parts)


def command_page() -> str:
    return CommandLine(read(ROOT / "lcm-cli" / "src" / "arguments.rs")).page()


# The Python package.


def markdown(docstring: str | None) -> str:
    """Return a docstring as Markdown: roles become code, and examples become code blocks."""
    text = re.sub(r":(?:class|func|meth|data|mod|attr):`~?([^`]+)`", r"`\1`", docstring or "")
    text = re.sub(r"``([^`]+)``", r"`\1`", text)
    lines: list[str] = []
    in_example = False
    for line in text.splitlines():
        if line.startswith(">>>") and not in_example:
            lines.append("```pycon")
            in_example = True
        elif in_example and not line.strip():
            lines.append("```")
            in_example = False
        lines.append(line)
    return "\n".join(lines) + ("\n```" if in_example else "")


def signature(function: ast.FunctionDef | ast.AsyncFunctionDef, name: str) -> str:
    arguments = ast.unparse(function.args)
    arguments = re.sub(r"^(self|cls)(, /)?(, )?", "", arguments)
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    prefix = "async def " if isinstance(function, ast.AsyncFunctionDef) else ""
    text = f"{prefix}{name}({arguments}){result}"
    if len(text) > 100:
        parts = ",\n    ".join(split_arguments(arguments))
        text = f"{prefix}{name}(\n    {parts},\n){result}"
    return f"```text\n{text}\n```\n"


def split_arguments(arguments: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(arguments):
        depth += letter in "([{"
        depth -= letter in ")]}"
        if letter == "," and depth == 0:
            parts.append(arguments[start:place].strip())
            start = place + 1
    return [*parts, arguments[start:].strip()]


def decorators(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    return [ast.unparse(decorator) for decorator in node.decorator_list]


def described(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield statements with the text that follows them."""
    for node, after in zip(body, [*body[1:], None], strict=True):
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
            text = after.value.value
        yield node, text


def one_line(text: str) -> str:
    return " ".join(markdown(text).split())


class PythonModule:
    """The public definitions of one source file."""

    def __init__(self, path: Path) -> None:
        self.tree = ast.parse(read(path))
        self.definitions: dict[str, ast.AST] = {}
        self.texts: dict[str, str] = {}
        for node, text in described(self.tree.body):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                self.definitions[node.name] = node
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                self.definitions[node.target.id] = node
                self.texts[node.target.id] = text
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.definitions[node.targets[0].id] = node
                self.texts[node.targets[0].id] = text

    @property
    def names(self) -> list[str]:
        """The names in `__all__`."""
        node = self.definitions["__all__"]
        assert isinstance(node, ast.Assign)
        return list(ast.literal_eval(node.value))

    def entry(self, module: str, name: str) -> Iterator[str]:
        node = self.definitions[name]
        yield f"### {name} {{#{module}.{name}}}\n"
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield signature(node, f"{module}.{name}")
            yield markdown(ast.get_docstring(node)) + "\n"
        elif isinstance(node, ast.ClassDef):
            yield markdown(ast.get_docstring(node)) + "\n"
            yield from self.members(module, node)
        else:
            yield markdown(self.texts.get(name)) + "\n"

    def members(self, module: str, cls: ast.ClassDef) -> Iterator[str]:
        fields: list[tuple[str, ...]] = []
        values: list[tuple[str, ...]] = []
        methods: list[str] = []
        for node, text in described(cls.body):
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                if not node.target.id.startswith("_"):
                    fields.append((code(node.target.id), code(ast.unparse(node.annotation)), one_line(text)))
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if isinstance(node.value, ast.Constant) and node.targets[0].id.isupper():
                    values.append((code(str(node.value.value)), code(node.targets[0].id), one_line(text)))
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                is_public = not node.name.startswith("_") or (node.name in {"__init__", "__new__"} and node.args.args)
                about = ast.get_docstring(node)
                if "property" in decorators(node) and is_public:
                    kind = code(ast.unparse(node.returns)) if node.returns else ""
                    fields.append((code(node.name), kind, one_line(about or "")))
                elif is_public and "overload" not in decorators(node):
                    shown = cls.name if node.name.startswith("__") else f"{cls.name}.{node.name}"
                    heading = f"#### {node.name} {{#{module}.{shown}}}\n\n" if shown != cls.name else ""
                    methods.append(heading + signature(node, shown) + "\n" + markdown(about) + "\n")
        if values:
            yield table(("value", "member", "meaning"), values)
        if fields:
            yield table(("field", "type", "meaning"), sorted(fields))
        yield from methods


def python_page() -> str:
    package = PythonModule(PACKAGE / "__init__.py")
    homes = [PythonModule(PACKAGE / "_lcm.pyi")]
    # The modules win over the native ones, because a class in them may wrap a native class of the same name.
    homes[:0] = [PythonModule(file) for file in sorted(PACKAGE.glob("*.py")) if not file.name.startswith("_")]
    parts = [
        "# Python API\n",
        "The public names of the package, with the documentation of their fields. `help()` and editors show the same"
        " texts. The package is typed: mypy and pyright check calls, fields and results.\n",
        "`lcm.__version__` is the version of the package.\n",
        "## lcm {#lcm}\n",
    ]
    modules = {"ports", "testing"}
    for name in package.names:
        if name not in modules:
            home = next(module for module in homes if name in module.definitions)
            parts.extend(home.entry("lcm", name))
    parts_of = ("ports", "plot")
    ports = [PythonModule(file) for folder in parts_of for file in sorted((PACKAGE / folder).glob("*.py"))]
    vocabulary = PythonModule(PACKAGE / "_vocabulary.py")
    for module, file in (
        ("lcm.ports", PACKAGE / "ports" / "__init__.py"),
        ("lcm.types", PACKAGE / "types.py"),
        ("lcm.plot", PACKAGE / "plot" / "__init__.py"),
        ("lcm.testing", PACKAGE / "testing" / "__init__.py"),
        ("lcm.testing.conformance", PACKAGE / "testing" / "conformance.py"),
        ("lcm.integrations.fastapi", PACKAGE / "integrations" / "fastapi.py"),
        ("lcm.integrations.neuroglia", PACKAGE / "integrations" / "neuroglia.py"),
    ):
        source = PythonModule(file)
        parts.append(f"## {module} {{#{module}}}\n")
        for name in source.names:
            home = next(one for one in (source, *ports, *homes, vocabulary) if name in one.definitions)
            parts.extend(home.entry(module, name))
    return "\n".join(parts)


# The crates.


RUST_DOCS = "https://lcm-project.github.io/lcm/rust"
"""The documentation that `make site` builds with rustdoc and copies beside the pages."""


def first_sentence(file: Path) -> str:
    """Return the first line of the documentation of a module, with its links as code."""
    line = read(file).splitlines()[0].removeprefix("//! ")
    return re.sub(r"\[`?([^\]`]+)`?\](\([^)]*\))?", r"\1", line)


def rust_modules(source: Path, path: str) -> Iterator[tuple[str, str, str]]:
    """Yield the public modules that a file declares: their path, the feature that they need, and their contents."""
    declared = re.findall(r"(?:^#\[cfg\((.*)\)\]\n)?^pub mod (\w+);", read(source), re.MULTILINE)
    for condition, name in declared:
        home = source.parent / name / "mod.rs"
        home = home if home.exists() else source.parent / f"{name}.rs"
        features = ", ".join(code(feature) for feature in re.findall(r'feature = "([^"]+)"', condition))
        address = f"{RUST_DOCS}/{path.replace('::', '/')}/{name}/index.html"
        yield f"[`{path}::{name}`]({address})", features or "none", first_sentence(home)


def rust_page() -> str:
    crates = (("lcm_sdk", SDK), ("fake_cloud", FAKE), ("lcm_cli", ROOT / "lcm-cli" / "src"))
    rows = [
        (f"[`{name}`]({RUST_DOCS}/{name}/index.html)", first_sentence(source / "lib.rs")) for name, source in crates
    ]
    head = ("module", "one of the features", "contents")
    modules = [
        *rust_modules(SDK / "lib.rs", "lcm_sdk"),
        *rust_modules(SDK / "providers" / "mod.rs", "lcm_sdk::providers"),
    ]
    fake = [(module, about) for module, _, about in rust_modules(FAKE / "lib.rs", "fake_cloud")]
    return "\n".join(
        (
            "# Rust API",
            "",
            "The documentation of every public item is built from the sources, for this version, and linked below."
            " `make docs` writes it to `target/doc`. After a release, the same pages are on docs.rs.",
            "",
            table(("crate", "contents"), rows),
            "The commands are explained on a [page of their own](../command.md), and the [fake cloud](../fake-cloud.md)"
            " is `FakeCloud::start().await` in a test.",
            "",
            "## lcm_sdk",
            "",
            table(head, modules),
            "## fake_cloud",
            "",
            table(("module", "contents"), fake),
        )
    )


def pages() -> dict[str, str]:
    """Return the generated pages by their paths below `docs/`."""
    contracts = ROOT / "fake-cloud" / "openapi"
    return {
        "reference/python.md": python_page(),
        "reference/rust.md": rust_page(),
        "reference/command.md": command_page(),
        "reference/transitions.md": transitions_page(),
        "reference/events.md": events_page(),
        "reference/fake-cloud-admin.md": admin_page(),
        "reference/compatibility.md": compatibility_page(),
        "reference/control-plane-original.md": Contract(contracts / "control-plane-original.yaml").page(),
        "reference/control-plane-extended.md": Contract(contracts / "control-plane-extended.yaml").page(),
    }
