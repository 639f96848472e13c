"""Checked WDL documents: a workflow and all that it imports, each source read, parsed and type-checked once.

miniwdl refuses sources that engines run. A fault that changes no call, edge, width or resource becomes a note of the plan: a name
that is used twice, and what is wrong in a task's command or outputs, of which a plan reads the types of the outputs alone.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

import WDL
from WDL import Error, Tree

from flowsched.errors import Fault, InvalidDocument, TooLarge

#: How deep imports may be inside each other.
IMPORT_DEPTH: Final = 10
#: Calls of a plan, sub-workflows expanded. The largest of WARP has 45.
NODES: Final = 5_000

#: (what an import says, name of the importing source or None for the first) -> (text, name), or None if there is no such source.
Reader = Callable[[str, str | None], tuple[str, str] | None]

Callee = Tree.Task | Tree.Workflow

#: An entry of `call … { input: name = …, name }`, up to its expression.
_CALL_INPUT: Final = re.compile(r"(?:\s|,|#[^\n]*|input\s*:)*(\w+)\s*(=(?!=))?")

#: The version statement of a source that miniwdl does not know yet; nothing but comments stands before it.
_LATER: Final = re.compile(r"\A(?:\s|#[^\n]*\n)*version\s+(1\.[3-9])\s")


class Documents:
    """Loads documents.

    Args:
        read: Called for the workflow and for each import.
        offered: Names of the imports there are, for messages.
    """

    def __init__(self, read: Reader, offered: list[str] | None) -> None:
        self.notes: list[str] = []
        self._read = read
        self._offered = offered
        self._loaded: dict[str, Tree.Document] = {}

    def load(self, uri: str, importer: str | None = None, place: str = "", depth: int = 1) -> Tree.Document:
        """A document with its imports.

        Args:
            uri: As the import statement says.
            importer: The name of the source that has the statement, and where; None for the workflow itself.
            place: Where the statement stands.
            depth: Of how many sources this is the last one.

        Raises:
            InvalidDocument: With file, line and column of each fault.
            TooLarge: A source has too many calls.
        """
        found = self._read(uri, importer)
        if found is None:
            raise InvalidDocument([self._missing(uri, place)])
        text, name = found
        if "://" in uri and name != uri:
            self.notes.append(f"{place}: {uri} was read from {name}: flowsched fetches no import")
        if name not in self._loaded:
            try:
                self._loaded[name] = self._checked(text, name, depth)
            except Error.MultipleValidationErrors as errors:
                raise InvalidDocument([_fault(each) for each in errors.exceptions[:1000]]) from errors
            except (Error.SyntaxError, Error.ValidationError) as error:
                raise InvalidDocument([_fault(error)]) from error
        return self._loaded[name]

    def _missing(self, uri: str, place: str) -> Fault:
        expected = "a file that can be read"
        if self._offered is not None:
            names = f"there are: {', '.join(self._offered[:20])}{', …' * (len(self._offered) > 20)}"
            expected = f"an import that was given ({names if self._offered else 'none was'})"
        elif "://" in uri:
            expected = "a copy of it below a folder of --wdl-path, since flowsched fetches no import"
        return Fault(place, f"an import of {uri!r}, which is not there", expected)

    def _checked(self, text: str, name: str, depth: int) -> Tree.Document:
        document = self._parsed(text, name)
        count = 0 if document.workflow is None else sum(1 for _ in _calls(document.workflow))
        if count > NODES:  # types of 5,000 calls take 12 s and 600 MiB, of 30,000 two minutes and 2 GiB
            raise TooLarge(f"{name} has {count:,} calls, and a plan has at most {NODES:,}")
        statements = {(each.namespace, each.uri): each for each in document.imports}
        for each in document.imports:
            if each not in statements.values():
                self._pass_over(each.pos, f"{each.uri} is imported again as {each.namespace}")
        document.imports = [
            statement._replace(doc=self._imported(statement, name, depth))
            for statement in statements.values()
        ]
        known = {each.name: _members(each.value) for each in document.struct_typedefs}
        document.imports = [self._separate_structs(each, known) for each in document.imports]
        callees: list[Callee] = [*document.tasks]
        if document.workflow is not None:
            callees.append(document.workflow)
        for callee in callees:
            self._separate_declarations(callee)
            checked: Any = callee
            checked.typecheck = partial(self._typecheck, callee)
        self._typecheck_document(document)
        return document

    def _imported(self, statement: Tree.DocImport, importer: str, depth: int) -> Tree.Document:
        place = _place(statement.pos)
        if depth == IMPORT_DEPTH:
            expected = f"at most {IMPORT_DEPTH} imports inside each other"
            raise InvalidDocument(
                [Fault(place, f"an import of {statement.uri!r} inside {depth} others", expected)]
            )
        return self.load(statement.uri, importer, place, depth + 1)

    def _pass_over(self, pos: Error.SourcePosition, what: str) -> None:
        self.notes.append(f"{_place(pos)}: {what}")

    # ---- names that are used twice ----

    def _parsed(self, text: str, name: str) -> Tree.Document:
        """Parse a source, without its repetitions if its parser refuses them; a version after 1.2 as 1.2, which it extends."""
        later = _LATER.search(text)
        if later is not None:
            text = f"{text[: later.start(1)]}1.2{text[later.end(1) :]}"
            self.notes.append(f"{name}: version {later[1]} was read as 1.2")
        while True:
            try:
                return WDL.parse_document(text, uri=name)
            except Error.SyntaxError as error:
                if not str(error).startswith("declare an import namespace"):
                    raise
                self._pass_over(error.pos, "no call can name this import, since its name is no identifier")
                quoted = re.compile(r"""(["'])[^"'\n]*\1""").search(text, _span(text, error.pos)[0])
                assert quoted is not None  # an import statement has its URI
                text = f"{text[: quoted.end()]} as import_{error.pos.line}_{error.pos.column}{text[quoted.end() :]}"
            except Error.MultipleDefinitions as error:
                span = _repeated(text, error)
                if span is None:
                    raise
                self._pass_over(error.pos, f"{error}: the last one counts")
                text = text[: span[0]] + re.sub(r"[^\n]", " ", text[slice(*span)]) + text[span[1] :]

    def _separate_structs(
        self, statement: Tree.DocImport, known: dict[str, dict[str, str]]
    ) -> Tree.DocImport:
        """The import without structs with known names; the others become known. Users of a struct know its type already."""
        assert statement.doc is not None  # it was loaded
        alias = dict(statement.aliases)
        here = {each.name: alias.get(each.name, each.name) for each in statement.doc.struct_typedefs}
        fresh = {name for name, name_here in here.items() if name_here not in known}
        for each in statement.doc.struct_typedefs:
            name = here[each.name]
            if known.setdefault(name, _members(each.value)) != _members(each.value):
                self._pass_over(
                    statement.pos, f"the import's struct {name} is another than the one of this name here"
                )
        document = copy.copy(statement.doc)  # other sources may import it, too
        document.struct_typedefs = document.struct_typedefs.filter(lambda each: each.name in fresh)
        aliases = [each for each in statement.aliases if each[0] in fresh or each[0] not in here]
        return statement._replace(doc=document, aliases=aliases)

    def _separate_declarations(self, callee: Callee) -> None:
        """Leave out declarations that a later one repeats in the same words, and outputs that are declared again."""
        for nodes in _bodies(callee):
            last = {each.name: each for each in nodes if isinstance(each, Tree.Decl)}
            for each in list(nodes):
                again = last.get(each.name, each) if isinstance(each, Tree.Decl) else each
                if again is not each and (nodes is callee.outputs or str(each) == str(again)):
                    self._pass_over(again.pos, f"{each.name} is declared again: this one counts")
                    nodes[:] = [node for node in nodes if node is not each]

    def _typecheck_document(self, document: Tree.Document) -> None:
        """Check the types, with a name of its own for a workflow that has the name of a task or call."""
        workflow = document.workflow
        if workflow is None:
            document.typecheck(check_quant=False)
            return
        name = workflow.name
        calls = (each.name for each in _calls(workflow) if each.callee_id != [name])
        if name in (*(task.name for task in document.tasks), *calls):
            self._pass_over(workflow.pos, f"a task or call has the name of the workflow, {name}")
            workflow.name = f"{name} (workflow)"
        try:
            document.typecheck(check_quant=False)
        finally:
            workflow.name = name

    def _typecheck(self, callee: Callee, *arguments: Any, **options: Any) -> None:
        """Check the types of a task or workflow, with names of their own for outputs that have the name of something else in it."""
        others = (body for body in _bodies(callee) if body is not callee.outputs)
        names = {each.name for body in others for each in body if isinstance(each, Tree.Decl | Tree.Call)}
        originals: dict[int, Tree.Decl] = {}
        outputs = callee.outputs or []
        for number, output in enumerate(outputs):
            if output.name in names:
                self._pass_over(
                    output.pos, f"the output {output.name} has the name of something else in {callee.name}"
                )
                renamed = Tree.Decl(output.pos, output.type, f"{output.name} (output)", output.expr, "output")
                originals[id(renamed)] = output
                outputs[number] = renamed
        check: Any = type(callee).typecheck
        try:
            check(callee, *arguments, **options)
        except (Error.ValidationError, Error.MultipleValidationErrors) as error:
            faults = error.exceptions if isinstance(error, Error.MultipleValidationErrors) else [error]
            if isinstance(callee, Tree.Workflow) or not all(
                _is_beside_the_plan(each, callee) for each in faults
            ):
                raise
            for each in faults:
                self._pass_over(each.pos, f"{_words(each)} (a plan does not read it)")
        finally:
            if originals:
                callee.outputs = [originals.get(id(each), each) for each in callee.outputs or ()]


def _calls(section: Tree.Workflow | Tree.WorkflowSection) -> Iterator[Tree.Call]:
    for node in section.body:
        if isinstance(node, Tree.Call):
            yield node
        elif isinstance(node, Tree.WorkflowSection):
            yield from _calls(node)


def _members(struct: Tree.StructTypeDef) -> dict[str, str]:
    """Member -> type as it is written: before the type check, a member that is a struct has no members itself."""
    return {name: str(kind) for name, kind in struct.members.items()}


def _bodies(callee: Callee | Tree.WorkflowSection) -> Iterator[list[Any]]:
    """The lists of declarations in it, sections inside sections included."""
    if isinstance(callee, Tree.Task):
        yield callee.postinputs
    else:
        yield callee.body
        for node in callee.body:
            if isinstance(node, Tree.WorkflowSection):
                yield from _bodies(node)
    if not isinstance(callee, Tree.WorkflowSection):
        yield from filter(None, (callee.inputs, callee.outputs))


def _is_beside_the_plan(error: Error.ValidationError, task: Tree.Task) -> bool:
    """Whether a fault is in the command or in an output's expression."""
    at = error.pos.line, error.pos.column
    spans = (part.pos for part in (task.command, *task.outputs))
    inside = any((p.line, p.column) <= at < (p.end_line, p.end_column) for p in spans)
    return inside and not isinstance(error, Error.InvalidType)


def _repeated(text: str, error: Error.MultipleDefinitions) -> tuple[int, int] | None:
    """The span of a declaration that the source repeats later; None where that is not known."""
    begin, end = _span(text, error.pos)
    message = str(error)
    if message == "duplicate keys in meta object":
        return begin + 1, end - 1
    if named := re.fullmatch(r"duplicate call input '(\w+)'", message):
        entries = [*_call_inputs(text, begin, end), ("", end)]
        return next(
            ((at, entries[n + 1][1]) for n, (name, at) in enumerate(entries) if name == named[1]), None
        )
    if named := re.fullmatch(r"multiple structs named (\w+)", message):
        match = re.search(rf"^[ \t]*struct\s+{named[1]}\s*{{", text, re.MULTILINE)
        return None if match is None else (match.start(), _closed(text, match.end()))
    return None


def _span(text: str, pos: Error.SourcePosition) -> tuple[int, int]:
    lines = [0, *(match.end() for match in re.finditer("\n", text))]
    return lines[pos.line - 1] + pos.column - 1, lines[pos.end_line - 1] + pos.end_column - 1


def _call_inputs(text: str, at: int, end: int) -> Iterator[tuple[str, int]]:
    """The inputs of a call, and where they begin."""
    declared = re.search(r"^\s*version\s+(\S+)", text, re.MULTILINE)
    version = declared[1] if declared else "draft-2"
    while match := _CALL_INPUT.match(text, at, end):
        yield match[1], match.start(1)
        at = match.end()
        if match[2]:
            commas = (each.start() for each in re.compile(",").finditer(text, at, end))
            at = next((stop for stop in commas if _is_expression(text[at:stop], version)), end)


def _is_expression(text: str, version: str) -> bool:
    try:
        WDL.parse_expr(text, version)
    except (Error.SyntaxError, Error.ValidationError):
        return False
    return True


def _closed(text: str, at: int) -> int:
    """Where the brace that was opened before `at` is closed."""
    depth = 1
    for match in re.compile("[{}]").finditer(text, at):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.end()
    return len(text)


def _words(error: Exception) -> str:
    return f"miniwdl refuses this: {' '.join(str(error).split())[:500]}"


def _fault(error: Error.SyntaxError | Error.ValidationError) -> Fault:
    return Fault(_place(error.pos), _words(error), "")


def _place(pos: Error.SourcePosition) -> str:
    return f"{pos.uri}:{max(1, pos.line)}:{max(1, pos.column)}"
