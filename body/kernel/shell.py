"""IPython's shell without ZMQ, terminal, database or home folder.

The namespace is a real module, `__main__`, so that pickle finds its classes and functions see
globals assigned later. This module runs cells itself: IPython copies all output, formats every
traceback twice and keeps both.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Awaitable, Mapping
from types import CodeType, ModuleType
from typing import Any

from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from IPython.core.profiledir import ProfileDir
from traitlets import Type, default

from . import commands
from .display import Displays, Results
from .fast_path import count_transformers, is_plain_cell
from .figures import needs_event_loop
from .history import History
from .interrupt import Interrupts
from .loop import Loop
from .refusals import Exit
from .resources import count_live
from .runtime import Runtime
from .sources import Sources

_KERNEL_NAMES = ("_", "__", "___", "_i", "_ii", "_iii", "_exit_code")
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def _hides_interrupt(error: BaseException | None) -> bool:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error = error.__context__
        if type(error) is KeyboardInterrupt:
            return True
    return False


class Shell(InteractiveShell):
    """Runs cells in `__main__`; `failure` is the last error that a cell raised or showed."""

    displayhook_class = Type(Results)
    display_pub_class = Type(Displays)
    compiler_class = Sources

    failure: BaseException | None = None
    kept_names: Mapping[str, Any] = dict.fromkeys(
        ("__doc__", "__loader__", "__package__", "__spec__")
    )
    """The content of an empty namespace, in addition to IPython's own names."""
    loop: Loop
    interrupts: Interrupts
    runtime: Runtime | None = None

    # Traits in IPython; here plain attributes without observers, because each cell sets them.
    execution_count = 1
    last_execution_result = None
    last_execution_succeeded = True

    _depth = 0

    @classmethod
    def create_shell(cls) -> Shell:
        module = ModuleType("__main__")
        shell = cls.instance(user_module=module, user_ns=module.__dict__, colors="nocolor")
        shell.own_transformers = count_transformers(shell)
        shell.own_names = {*shell.user_ns, *_KERNEL_NAMES}
        return shell

    # Files that IPython reads from the home folder, and that do not exist here.

    def init_ipython_dir(self, ipython_dir: Any) -> None:
        pass

    def init_profile_dir(self, profile_dir: Any) -> None:
        self.profile_dir = ProfileDir()
        self.db = {}

    def init_virtualenv(self) -> None:
        pass

    def init_history(self) -> None:
        self.history_manager = History(shell=self, parent=self)

    def init_alias(self) -> None:
        super().init_alias()
        plain = [(name, line.replace(" --color", "")) for name, line in self.alias_manager.aliases]
        self.alias_manager.default_aliases = plain
        self.alias_manager.init_aliases()

    @default("exiter")
    def _exiter_default(self) -> Exit:
        return Exit(self)

    # Running cells.

    def run_cell(
        self,
        raw_cell: str,
        store_history: bool = False,
        silent: bool = False,
        shell_futures: bool = True,
        cell_id: str | None = None,
        **_: Any,
    ) -> ExecutionResult:
        """Runs a cell, also for magics; an error is in the result and in `failure`."""
        info = ExecutionInfo(raw_cell, store_history, silent, shell_futures, cell_id)
        result = ExecutionResult(info)
        result.execution_count = number = self.execution_count
        if store_history:
            self.execution_count += 1
        hook = self.displayhook
        outer, nested = hook.source, self._depth > 0
        hook.source, hook.sent = raw_cell, nested
        if not nested:
            hook.silent, hook.cached = silent, store_history
        self._depth += 1
        try:
            self.events.trigger("pre_execute")
            if not silent:
                self.events.trigger("pre_run_cell", info)
            with self.builtin_trap, self.display_trap:
                self._run_code(raw_cell, number, result)
        except BaseException as error:
            result.error_in_exec = self.failure = error
        finally:
            self._depth -= 1
            hook.source, hook.sent = outer, False
            self.last_execution_result = result
            self.last_execution_succeeded = result.success
            self.events.trigger("post_execute")
            if not silent:
                self.events.trigger("post_run_cell", result)
        return result

    def _run_code(self, raw_cell: str, number: int, result: ExecutionResult) -> None:
        try:
            cell, tree, name = self._parse_cell(raw_cell, number)
            if result.info.store_history:
                self.history_manager.store_inputs(number, cell, raw_cell)
            codes = self._compile_cell(tree, name)
            self.compile.program = None  # cells that this one runs are not of its file
        except Exception as error:
            result.error_before_exec = self.failure = error
            return
        self.displayhook.exec_result = result
        try:
            waits = any(code.co_flags & inspect.CO_COROUTINE for code in codes)
            if waits or self.loop.needs_running_loop(cell):
                self.loop.run_cell(self._run_codes_in_loop(codes, result))
            else:
                for code in codes:
                    exec(code, self.user_global_ns, self.user_ns)
        finally:
            self.displayhook.exec_result = None

    async def _run_codes_in_loop(self, codes: list[CodeType], result: ExecutionResult) -> None:
        try:
            for code in codes:
                if code.co_flags & inspect.CO_COROUTINE:
                    await eval(code, self.user_global_ns, self.user_ns)
                else:
                    exec(code, self.user_global_ns, self.user_ns)
        except BaseException as error:  # raised in the loop it would end the loop
            result.error_in_exec = self.failure = error

    def wait_for(self, awaitable: Awaitable[Any]) -> Any:
        """Runs an awaitable in the loop, as a cell; returns its value."""
        value = error = None

        async def await_value() -> None:
            nonlocal value, error
            try:
                value = await awaitable
            except BaseException as raised:  # raised in the loop it would end the loop
                error = raised

        self.loop.run_cell(await_value())
        if error is not None:
            raise error
        return value

    def _parse_cell(self, raw_cell: str, number: int) -> tuple[str, ast.Module, str]:
        """Returns the cell as Python source, its syntax tree, and the name of its lines."""
        if is_plain_cell(self, raw_cell, self.own_transformers):
            cell = raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
            name = self.compile.cache(cell, number, raw_code=raw_cell)
            try:
                return cell, self.compile.ast_parse(cell, filename=name), name
            except SyntaxError:
                self.compile.undo_cache(name)
        cell = self.transform_cell(raw_cell)
        name = self.compile.cache(cell, number, raw_code=raw_cell)
        return cell, self.compile.ast_parse(cell, filename=name), name

    def _compile_cell(self, tree: ast.Module, name: str) -> list[CodeType]:
        """Compiles the statements as one code object, and the last expression as one that is
        displayed."""
        body = self.transform_ast(tree).body
        shown = 0
        match self.ast_node_interactivity:
            case "all":
                shown = len(body)
            case "last" | "last_expr" | "last_expr_or_assign":
                shown = 1 if body and isinstance(body[-1], ast.Expr) else 0
        with self.compile.extra_flags(_AWAIT):
            split = len(body) - shown
            codes = [self.compile(ast.Module(body[:split], []), name, "exec")] if split else []
            for node in body[split:]:
                codes.append(self.compile(ast.Interactive([node]), name, "single"))
        return codes

    # Failures become frames instead of terminal output.

    def showtraceback(self, exc_tuple: Any = None, *_: Any, **__: Any) -> None:
        error = exc_tuple[1] if exc_tuple else sys.exc_info()[1]
        if _hides_interrupt(error):  # cleanup of formatting code raised it
            raise KeyboardInterrupt from error
        self.failure = error or self.failure

    def showsyntaxerror(self, *_: Any, **__: Any) -> None:
        self.showtraceback()

    def show_usage_error(self, exc: BaseException) -> None:
        self.failure = exc

    def system(self, cmd: str) -> None:
        """Runs `!command`: its output is the cell's; its exit code is `_exit_code`."""
        line = self.var_expand(cmd, depth=1)
        self.user_ns["_exit_code"] = commands.run_command(line, self.interrupts)

    system_raw = system_piped = system

    # Magics of matplotlib: figures are always inline.

    def enable_gui(self, gui: str | None = None) -> None:
        """`%gui`: warns about a toolkit, whose event loop this kernel does not run."""
        if gui not in (None, "asyncio", "inline"):
            message = f"`%gui {gui}` has no effect: this kernel runs no GUI event loop"
            print(message, file=sys.stderr)

    def enable_matplotlib(self, gui: str | None = None) -> tuple[str | None, str]:
        """`%matplotlib` and `%pylab`: replaces an interactive backend by `inline`, with a warning.

        An error would end the cell, and the imports after the magic with it.
        """
        if needs_event_loop(gui):
            reason = f"the backend `{gui}` needs a GUI event loop or Jupyter widgets"
            remedy = "figures stay inline; use `%matplotlib inline`"
            print(f"{reason}, which this kernel does not have; {remedy}", file=sys.stderr)
            gui = "inline"
        return super().enable_matplotlib(gui)

    # The namespace.

    def user_names(self) -> set[str]:
        """Returns the names that the user has defined."""
        return self.user_ns.keys() - self.own_names - self.displayhook.names

    def count_state(self) -> dict[str, int]:
        """Returns the state counts of hello, replies and `done` frames."""
        return {
            "execution_count": self.execution_count - 1,
            "globals_count": len(self.user_names()),
            "resources_count": count_live(),
        }

    def clear_namespace(self) -> None:
        """Deletes the user's names; the cell count continues."""
        try:
            self.reset(new_session=False)
        finally:
            self.last_execution_result = None
            self.failure = None

    def reset(self, new_session: bool = True, aggressive: bool = False) -> None:
        """Ends live objects first; an interrupt does not leave a partly cleared namespace."""
        try:
            if self.runtime is not None:  # None in a template
                self.runtime.reset()
            super().reset(new_session, aggressive)
        except KeyboardInterrupt:
            super().reset(new_session, aggressive)
            raise

    def init_user_ns(self) -> None:
        super().init_user_ns()
        self.user_ns.update(self.kept_names)
        self.user_ns_hidden.update(self.kept_names)

    def add_runtime(self, runtime: Runtime) -> None:
        """Adds `runtime` to this and every later namespace; it is not a user name."""
        self.runtime = runtime
        self.kept_names = {**self.kept_names, "runtime": runtime}
        self.own_names.add("runtime")
        self.user_ns["runtime"] = self.user_ns_hidden["runtime"] = runtime
