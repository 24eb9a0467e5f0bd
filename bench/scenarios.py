"""The loads under which targets are compared."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """One kind of load; the model's name sets the upstream's behaviour (see `bench.behaviour`)."""

    name: str
    description: str
    model: str
    concurrency: int
    is_stream: bool = True
    requests: int | None = None
    ramp_seconds: float = 0
    warmup_requests: int = 32
    protocol: str = "chat"
    prompt_bytes: int = 0

    def load_arguments(self, seconds: float) -> list[str]:
        """Return arguments for `bench.load`; a scenario with a number of requests ends with the last one, not
        after `seconds`.
        """
        arguments = [
            "--model",
            self.model,
            "--concurrency",
            str(self.concurrency),
            "--warmup-requests",
            str(self.warmup_requests),
            "--protocol",
            self.protocol,
            "--prompt-bytes",
            str(self.prompt_bytes),
        ]
        if self.requests is None:
            arguments += ["--seconds", str(seconds)]
        else:
            arguments += [
                "--requests",
                str(self.requests),
                "--ramp-seconds",
                str(self.ramp_seconds),
                "--seconds",
                "60",
            ]
        return arguments if self.is_stream else [*arguments, "--no-stream"]


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario("saturate", "64-token streams as fast as they go, 32 concurrent", "tok64-d0", 32),
        Scenario("sequential", "64-token streams as fast as they go, one after the other", "tok64-d0", 1),
        Scenario(
            "paced",
            "200 streams at 50 tokens/s",
            "tok100-d20",
            200,
            requests=200,
            ramp_seconds=1,
            warmup_requests=8,
        ),
        Scenario(
            "non-stream",
            "64-token answers that are not streamed, 32 concurrent",
            "tok64-d0",
            32,
            is_stream=False,
        ),
        Scenario("long", "256-token streams as fast as they go, 32 concurrent", "tok256-d0", 32),
        Scenario(
            "crowd",
            "1,000 streams at 20 tokens/s",
            "tok100-d50",
            1_000,
            requests=1_000,
            ramp_seconds=3,
            warmup_requests=8,
        ),
        Scenario(
            "prompt",
            "64-token streams with a prompt of 2 MB, 4 concurrent",
            "tok64-d0-p500000",
            4,
            warmup_requests=4,
            prompt_bytes=2_000_000,
        ),
        Scenario(
            "one-prompt",
            "64-token streams with a prompt of 2 MB, one after the other",
            "tok64-d0-p500000",
            1,
            warmup_requests=4,
            prompt_bytes=2_000_000,
        ),
    )
}
COMPARED = ("saturate", "sequential", "paced", "non-stream")
"""The default scenarios of `bench.compare`."""


@dataclass(frozen=True)
class Flood(Scenario):
    """What the large organization's callers of `bench.fairness` send."""

    choices: int = 1
    refused_every: int = 0
    """Every so many callers ask for a model that does not exist; 0 is none."""


FLOODS = {
    flood.name: flood
    for flood in (
        Flood("streams", "400 streams of 2 s", "tok20-d100-f1", 400),
        Flood(
            "prompts",
            "64 streams of 2 s with a prompt of 2 MB",
            "tok20-d100-f1-p500000",
            64,
            prompt_bytes=2_000_000,
        ),
        Flood("choices", "32 streams of 2 s with 128 choices", "tok20-d100-f1", 32, choices=128),
        Flood(
            "requests",
            "256 callers of short answers that are not streamed, a quarter of them refused",
            "tok4-d0",
            256,
            is_stream=False,
            refused_every=4,
        ),
    )
}
"""The floods of `bench.fairness`; the concurrency is the number of callers."""
