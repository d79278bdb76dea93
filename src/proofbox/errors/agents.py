"""Errors of agent runtimes, from the prompt to the end of the turn."""

from __future__ import annotations

from proofbox.errors.base import ProofboxError


class AgentError(ProofboxError):
    """An agent's turn failed.

    `details` has `retry_after` (seconds) or `resets_at` (seconds since the epoch) if they are known.
    """

    code = "RUNTIME_FAILED"
    exit_code = 1
    hints = ("check the recorded steps and the agent program's output",)


class StrategyUnsupported(AgentError):
    """No runtime has that id."""

    code = "RUNTIME_STRATEGY_UNSUPPORTED"
    exit_code = 2
    hints = ("list the runtimes: proofbox runtime list",)


class StrategyUnavailable(AgentError):
    """No strategy in the chain is available on this machine. `details["chain"]` gives the reason for each."""

    code = "RUNTIME_STRATEGY_UNAVAILABLE"
    exit_code = 3
    hints = ("see what each runtime requires: proofbox runtime list",)


class CapabilityUnsupported(AgentError):
    """The runtime does not support the requested capability."""

    code = "RUNTIME_CAPABILITY_UNSUPPORTED"
    exit_code = 3
    hints = ("choose a runtime that supports it: proofbox runtime list",)


class RuntimeIncompatible(AgentError):
    """The agent program is installed, but its version or protocol is not supported."""

    code = "RUNTIME_COMPATIBILITY"
    exit_code = 3
    hints = ("install a supported version: proofbox runtime list",)


class RuntimeStartFailed(AgentError):
    """The agent program did not start."""

    code = "RUNTIME_STARTUP"
    exit_code = 3
    hints = ("check the runtime: proofbox runtime check STRATEGY",)


class TransportBroken(AgentError):
    """The connection to the agent program broke."""

    code = "RUNTIME_TRANSPORT"
    retryable = True
    hints = ("try again in a new session",)


class RuntimeProtocolError(AgentError):
    """The agent program violated its protocol or refused a request."""

    code = "RUNTIME_PROTOCOL"
    hints = ("check the runtime: proofbox runtime check STRATEGY",)


class RuntimeTimedOut(AgentError):
    """A request or a turn timed out."""

    code = "RUNTIME_TIMEOUT"
    hints = ("raise the timeout: --timeout SECONDS",)


class RuntimeStalled(AgentError):
    """A turn produced no events for longer than the stall timeout."""

    code = "RUNTIME_STALL"
    retryable = True
    hints = ("raise the stall timeout: --stall-timeout SECONDS",)


class StreamDisconnected(AgentError):
    """The stream from the model ended before its answer was complete."""

    code = "RUNTIME_STREAM_DISCONNECT"
    retryable = True
    hints = ("try again",)


class ListenerFailed(AgentError):
    """The event listener failed, so the record of the turn is incomplete."""

    code = "RUNTIME_LISTENER_FAILURE"
    hints = ("fix the event listener; the events that it missed are not in the record",)


class EnvPolicyRefused(AgentError):
    """The request includes an environment variable that must not enter a box."""

    code = "RUNTIME_ENV_POLICY"
    exit_code = 2
    hints = ("remove the variable, or grant it by name: --grant NAME",)


class AuthFailed(AgentError):
    """The model endpoint rejected the credential, or the credential is missing."""

    code = "RUNTIME_AUTH"
    hints = ("check the key in the environment variable that api_key_env names",)


class RateLimited(AgentError):
    """The model endpoint's rate limit was reached."""

    code = "RUNTIME_RATE_LIMIT"
    retryable = True
    hints = ("wait for the time given in the details, then try again",)


class UsageLimited(AgentError):
    """The account's usage limit was reached; it resets at the end of its window."""

    code = "RUNTIME_USAGE_LIMIT"
    retryable = True
    hints = ("wait for the reset, or use another key",)


class Overloaded(AgentError):
    """The model endpoint or the runtime is overloaded."""

    code = "RUNTIME_OVERLOADED"
    retryable = True
    hints = ("wait a moment, then try again",)


class ContextExceeded(AgentError):
    """The conversation no longer fits in the model's context window."""

    code = "RUNTIME_CONTEXT_EXCEEDED"
    hints = ("start a new thread, or use a shorter prompt",)


class ModelFailed(AgentError):
    """The model endpoint returned some other error. `details["status"]` is its HTTP status."""

    code = "RUNTIME_MODEL_ERROR"
    hints = ("check --model and --base-url, and the endpoint's error message",)


class RuntimeCrashed(AgentError):
    """The agent program exited during a turn."""

    code = "RUNTIME_CRASH"
    retryable = True
    hints = ("check the end of the program's output, then try again in a new session",)


class TurnInterrupted(AgentError):
    """The turn was interrupted, by proofbox or by the agent program itself."""

    code = "RUNTIME_INTERRUPTED"
    hints = ("start a new turn",)


class FunnelUnavailable(AgentError):
    """The supervisor's funnel was called from outside an agent's box."""

    code = "RUNTIME_FUNNEL_UNAVAILABLE"
    exit_code = 3
    hints = ("call it from inside a process agent's box: see docs/funnel.md",)


class RuntimeChecksFailed(AgentError):
    """The runtime failed conformance checks: it does not provide all the capabilities it declares."""

    code = "RUNTIME_CHECKS_FAILED"
    hints = ("see the result of each check: proofbox runtime check STRATEGY --json",)
