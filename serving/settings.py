"""What a server may be told: where it listens, who may ask, how much, and what it keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr, model_validator

from partgcd.config.tree import Positive, Section, Share

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
KEY_VARIABLE = "PARTGCD_API_KEY"

Kept = Literal["all", "unfamiliar", "unsure"]
Megabytes = Annotated[float, Field(gt=0.0)]
Origin = Annotated[str, Field(pattern=r"^https?://[^\s/@*,]+$")]


class Limits(Section):
    """What one request, and all of them together, may take. Every refusal states its limit."""

    max_body_mb: Megabytes = Field(32.0, description="Body of one request, 1e6 bytes.")
    max_files: int = Field(32, ge=1, le=1000, description="Images in one request.")
    max_megapixels: Positive = Field(50.0, description="Pixels of one image, 1e6.")
    read_timeout_s: Positive = Field(30.0, description="Until a body has arrived, seconds.")
    min_upload_kb_s: float = Field(
        10.0, ge=0.0, description="A body that comes slower is cut, 1e3 bytes a second."
    )
    decode_timeout_s: Positive = Field(5.0, description="Decoding one image, seconds.")
    queue_timeout_s: Positive = Field(
        3.5, description="Until the first image of a request has a worker, seconds."
    )
    request_timeout_s: Positive = Field(30.0, description="From the whole body to the answer, seconds.")
    max_queue: int = Field(64, ge=1, description="Images that are waiting or worked on.")
    max_buffered_mb: Megabytes = Field(512.0, description="Bodies of all requests together, 1e6 bytes.")
    max_decode_mb: Megabytes = Field(1000.0, description="Memory of all images being decoded, 1e6 bytes.")
    max_connections: int = Field(1000, ge=1, description="Open connections; idle ones are closed above it.")
    max_connections_each: int = Field(500, ge=1, description="Open connections of one client's address.")

    @model_validator(mode="after")
    def _possible(self) -> Limits:
        if self.max_files > self.max_queue:
            raise ValueError(f"max_files {self.max_files} never fits into max_queue {self.max_queue}")
        if self.max_body_mb > self.max_buffered_mb:
            raise ValueError("max_body_mb never fits into max_buffered_mb")
        return self


class Collecting(Section):
    """The inbox of incoming images."""

    folder: Path
    what: Kept = Field("all", description="All images, novel ones, or novel and unsure ones.")
    below: Share = Field(0.5, description="Confidence below which an answer is unsure.")
    per_minute: Positive = Field(60.0, description="Images kept a minute at most.")
    quota_mb: Megabytes = Field(
        1000.0, description="Size of the inbox above which nothing is kept, 1e6 bytes."
    )


class ServeSettings(Section):
    """A server. ``source`` is a bundle, a link to one, or a registry of which ``alias`` is served."""

    source: Path
    alias: str = "champion"
    allow_hosts: tuple[str, ...] = Field(
        LOCAL_HOSTS, description="Host headers that are answered; '*' answers all."
    )
    allow_origins: tuple[Origin, ...] = Field(
        (),
        description="Origins of pages besides the server's own that may send, like https://photos.example.",
    )
    api_key: SecretStr | None = Field(None, description="Asked of everybody, except for health.")
    limits: Limits = Limits()
    collect: Collecting | None = None
    workers: int = Field(0, ge=0, description="Images worked on at once; 0 is one a CPU.")
    threads: int = Field(0, ge=0, description="CPU threads of one image; 0 shares the CPUs among workers.")
    cpus: int = Field(0, ge=0, description="CPUs to share; 0 is those this process may use.")
    provider: Literal["auto", "cpu", "cuda"] = "auto"
    poll_s: Positive = Field(1.0, description="How often the source is looked at, seconds.")

    @model_validator(mode="after")
    def _key(self) -> ServeSettings:
        if self.api_key is not None:
            text = self.api_key.get_secret_value()
            if len(text) < 8 or not text.isascii() or not text.isprintable() or text != text.strip():
                raise ValueError("an API key is at least 8 printable ASCII characters")
        return self
