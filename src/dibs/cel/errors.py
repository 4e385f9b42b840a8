"""The error tree of the CEL engine. Every failure that an expression can cause is one of these.

    CelError
    ├── CelCompileError      the expression can never be evaluated
    │   ├── CelSyntaxError   it is not CEL
    │   └── CelTypeError     an undeclared name, or no overload for these argument types
    ├── CelRuntimeError      this evaluation failed; CEL's own `&&` and `||` may absorb it
    ├── CelCostError         the cost or step budget is used up; never absorbed by the expression
    └── CelCancelledError    the caller's cancellation callback said stop; never absorbed either

Raised by every other module of the package. Must not import any of them.
"""


class CelError(Exception):
    """Base of all. ``message`` is the sentence alone; ``str(error)`` adds the place and a caret line."""

    def __init__(self, message: str, *, expression: str | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.expression = expression
        self.offset = offset

    def locate(self, expression: str, offset: int | None) -> None:
        """Fill in the place, unless a deeper place is known already."""
        if self.expression is None:
            self.expression = expression
        if self.offset is None:
            self.offset = offset

    @property
    def line(self) -> int | None:
        """The line, counted from 1."""
        if self.expression is None or self.offset is None:
            return None
        return self.expression.count("\n", 0, self.offset) + 1

    @property
    def column(self) -> int | None:
        """The column in code points, counted from 1."""
        if self.expression is None or self.offset is None:
            return None
        return self.offset - (self.expression.rfind("\n", 0, self.offset) + 1) + 1

    def snippet(self) -> str:
        """The source line with a caret below the place, or nothing where the place is unknown."""
        if self.expression is None or self.offset is None or self.column is None:
            return ""
        start = self.offset - (self.column - 1)
        end = self.expression.find("\n", start)
        text = self.expression[start : end if end >= 0 else len(self.expression)]
        return f" | {text}\n | {'.' * (self.column - 1)}^"

    def __str__(self) -> str:
        if self.line is None:
            return self.message
        return f"<input>:{self.line}:{self.column}: {self.message}\n{self.snippet()}"


class CelCompileError(CelError):
    """The expression was refused before any evaluation. ``problems`` holds all that were found."""

    def __init__(self, message: str, *, expression: str | None = None, offset: int | None = None) -> None:
        super().__init__(message, expression=expression, offset=offset)
        self.problems: tuple[CelError, ...] = (self,)

    @classmethod
    def of(cls, problems: "list[CelCompileError]") -> "CelCompileError":
        """One error for several problems: the first one, with the others attached."""
        first = problems[0]
        first.problems = tuple(problems)
        return first

    def __str__(self) -> str:
        return "\n".join(f"ERROR: {CelError.__str__(problem)}" for problem in self.problems)


class CelSyntaxError(CelCompileError):
    """The text is not a CEL expression, or it is too long or too deeply nested."""


class CelTypeError(CelCompileError):
    """A name is not declared, or the types do not fit."""


class CelRuntimeError(CelError):
    """The evaluation failed: no such key, overflow, division by zero, no such overload and the like."""


class CelCostError(CelError):
    """The expression is (or turned out to be) more expensive than allowed."""


class CelCancelledError(CelError):
    """The evaluation was stopped by the caller."""
