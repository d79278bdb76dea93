"""Between a prompt and the end of an agent's turn."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class AgentError(ProofboxError):
    """Anything that goes wrong between a prompt and the end of an agent's turn.

    `details` has `retry_after` (seconds) or `resets_at` (seconds since the epoch) where they are known.
    """

    code = "RUNTIME_FAILED"
    exit_code = 1
    hints = ("look at the steps in the record, and at what the program said",)


class StrategyUnsupported(AgentError):
    """No runtime has that id."""

    code = "RUNTIME_STRATEGY_UNSUPPORTED"
    exit_code = 2
    hints = ("list those there are: proofbox runtime list",)


class StrategyUnavailable(AgentError):
    """Nothing in the chain could be used here. `details["chain"]` says of each why not."""

    code = "RUNTIME_STRATEGY_UNAVAILABLE"
    exit_code = 3
    hints = ("see what each needs: proofbox runtime list",)


class CapabilityUnsupported(AgentError):
    """The runtime is there, and can't do what was asked."""

    code = "RUNTIME_CAPABILITY_UNSUPPORTED"
    exit_code = 3
    hints = ("choose a runtime that can: proofbox runtime list",)


class RuntimeIncompatible(AgentError):
    """The agent's program was found, and its version or protocol is not one we can drive."""

    code = "RUNTIME_COMPATIBILITY"
    exit_code = 3
    hints = ("install a version that is known: proofbox runtime list",)


class RuntimeStartFailed(AgentError):
    """The agent's program did not come up."""

    code = "RUNTIME_STARTUP"
    exit_code = 3
    hints = ("check the runtime: proofbox runtime check STRATEGY",)


class TransportBroken(AgentError):
    """The stream to the agent's program broke."""

    code = "RUNTIME_TRANSPORT"
    retryable = True
    hints = ("try again in another session",)


class RuntimeProtocolError(AgentError):
    """The agent's program said something that its protocol does not allow, or refused a request."""

    code = "RUNTIME_PROTOCOL"
    hints = ("check the runtime: proofbox runtime check STRATEGY",)


class RuntimeTimedOut(AgentError):
    """A request or a turn was over its deadline."""

    code = "RUNTIME_TIMEOUT"
    hints = ("give it more time: --timeout SECONDS",)


class RuntimeStalled(AgentError):
    """A turn gave no sign of life for longer than it was allowed to."""

    code = "RUNTIME_STALL"
    retryable = True
    hints = ("give it more time: --stall-timeout SECONDS",)


class StreamDisconnected(AgentError):
    """The stream from the model ended before its answer was complete."""

    code = "RUNTIME_STREAM_DISCONNECT"
    retryable = True
    hints = ("try again",)


class ListenerFailed(AgentError):
    """Whoever was to record the events failed to, so the record of the turn is not whole."""

    code = "RUNTIME_LISTENER_FAILURE"
    hints = ("mend the listener: what it missed is not in the record",)


class EnvPolicyRefused(AgentError):
    """A variable was asked for that must not enter a box."""

    code = "RUNTIME_ENV_POLICY"
    exit_code = 2
    hints = ("leave the variable out, or grant it by its name: --grant NAME",)


class AuthFailed(AgentError):
    """The model's endpoint refused the credential, or there was none."""

    code = "RUNTIME_AUTH"
    hints = ("check the key in the variable that api_key_env names",)


class RateLimited(AgentError):
    """Too many requests for now."""

    code = "RUNTIME_RATE_LIMIT"
    retryable = True
    hints = ("wait as long as the details say, then try again",)


class UsageLimited(AgentError):
    """What was paid for is used up, until the window's reset."""

    code = "RUNTIME_USAGE_LIMIT"
    retryable = True
    hints = ("wait for the reset, or use another key",)


class Overloaded(AgentError):
    """The model's endpoint, or the runtime itself, has too much to do."""

    code = "RUNTIME_OVERLOADED"
    retryable = True
    hints = ("wait a moment, then try again",)


class ContextExceeded(AgentError):
    """The conversation does not fit into the model any more."""

    code = "RUNTIME_CONTEXT_EXCEEDED"
    hints = ("begin a new thread, or give a shorter task",)


class ModelFailed(AgentError):
    """The model's endpoint answered with an error of another kind. `details["status"]` is its HTTP status."""

    code = "RUNTIME_MODEL_ERROR"
    hints = ("check --model and --base-url, and what the endpoint says",)


class RuntimeCrashed(AgentError):
    """The agent's program ended under a turn."""

    code = "RUNTIME_CRASH"
    retryable = True
    hints = ("look at what the program said last, then try again in another session",)


class TurnInterrupted(AgentError):
    """The turn was stopped before its end, by us or by the agent's own program."""

    code = "RUNTIME_INTERRUPTED"
    hints = ("start another turn",)


class FunnelUnavailable(AgentError):
    """What only an agent in a box can ask its supervisor for was asked for elsewhere."""

    code = "RUNTIME_FUNNEL_UNAVAILABLE"
    exit_code = 3
    hints = ("call it in the box of a process agent: see docs/funnel.md",)


class RuntimeChecksFailed(AgentError):
    """A runtime does not do what its capabilities say: checks of the conformance suite failed."""

    code = "RUNTIME_CHECKS_FAILED"
    hints = ("see what each check found: proofbox runtime check STRATEGY --json",)
