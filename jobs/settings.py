"""The settings of the throttle job, parsed strictly: an unknown key or a value of the wrong type is an error.

`conf/throttle.yaml` documents every setting, with its default and its reason. This module has only names and types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from spark_throttle.errors import ConfigurationError, PolicyError, did_you_mean
from spark_throttle.policy.yaml_text import read_yaml


def _as_option(value: object) -> object:
    """Return a scalar as the string that Spark takes as an option."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float | Decimal) else value


Option = Annotated[str, BeforeValidator(_as_option)]
Expression = Annotated[str, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
"""An SQL expression; a whole number, as in `units: 0`, is one too."""
Seconds = Annotated[Decimal, BeforeValidator(lambda value: Decimal(value) if type(value) is int else value)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


class StreamSettings(_Settings):
    """A stream that the job reads."""

    format: Literal["throttle_load", "kafka", "delta", "parquet", "json"]
    path: str | None = None
    schema_ddl: str | None = Field(default=None, alias="schema")
    options: dict[str, Option] = {}
    select: list[str] = []

    @model_validator(mode="after")
    def _check_needs(self) -> Self:
        if self.format in ("parquet", "json") and self.schema_ddl is None:
            raise ValueError(f"a stream of {self.format} files needs a schema such as 'namespace STRING, size INT'")
        if self.format in ("delta", "parquet", "json") and self.path is None:
            raise ValueError(f"a {self.format} source needs a path")
        return self


class SourceSettings(StreamSettings):
    """The source of the rows."""

    decide_on: Literal["auto", "references", "staged"] = "auto"


class CostSettings(StreamSettings):
    """The source of late costs."""

    identity: str
    units: Expression


class ThrottleSettings(_Settings):
    """The arguments of the throttle."""

    policies: str | dict[str, Any]
    namespace: str
    size: Expression | None = None
    units: Expression | None = None
    reservation: str | None = None
    order_by: list[str] = []
    direction: Literal["publish", "dispatch"] = "publish"


class ExchangeSettings(_Settings):
    """The exchange through which jobs share their quotas; without a path the job shares none."""

    path: str | None = None
    job: str | None = None
    interval: Seconds = Field(default=Decimal(5), gt=0)
    lease: Seconds = Field(default=Decimal(60), gt=0)
    report_change: Decimal = Field(default=Decimal("0.1"), ge=0, le=1)
    report_every: int = Field(default=12, ge=1)
    floor: Decimal = Field(default=Decimal("0.03"), ge=0, le=1)
    policy: Literal["max_min", "proportional", "residual", "steal", "static"] = "max_min"


class SinkSettings(_Settings):
    """The sink of the rows: a path, a table, or a target that the options name."""

    format: str
    path: str | None = None
    table: str | None = None
    options: dict[str, Option] = {}
    partition_by: list[str] = []

    @model_validator(mode="after")
    def _check_one_target(self) -> Self:
        if self.path is not None and self.table is not None:
            raise ValueError("path and table are both given; keep one")
        return self


class RejectedSettings(_Settings):
    """The sink of the rejected rows with their reasons."""

    format: str
    path: str | None = None
    options: dict[str, Option] = {}


class TriggerSettings(_Settings):
    """The trigger, which sets when a batch starts."""

    processing_time: str | None = "1 second"
    available_now: bool = False

    @model_validator(mode="after")
    def _check_one_kind(self) -> Self:
        if self.available_now == (self.processing_time is not None):
            raise ValueError("give either processing_time, or processing_time: null and available_now: true")
        return self


class SparkSettings(_Settings):
    """The Spark session; these settings override those of spark-submit."""

    app_name: str = "spark-throttle"
    master: str | None = None
    conf: dict[str, Option] = {}


class JobSettings(_Settings):
    """All settings of `jobs/throttle_stream.py`."""

    source: SourceSettings
    throttle: ThrottleSettings
    costs: CostSettings | None = None
    exchange: ExchangeSettings = ExchangeSettings()
    sink: SinkSettings
    rejected: RejectedSettings | None = None
    usage: str | None = None
    checkpoint: str
    query_name: str = "throttle"
    trigger: TriggerSettings = TriggerSettings()
    stop_after_seconds: Seconds | None = Field(default=None, gt=0)
    report_seconds: Seconds = Field(default=Decimal(60), gt=0)
    spark: SparkSettings = SparkSettings()

    @model_validator(mode="after")
    def _check_costs(self) -> Self:
        if self.costs is not None and self.throttle.reservation is None:
            raise ValueError("costs: they settle what rows reserved; give throttle.reservation, or leave costs out")
        return self

    @property
    def may_be_referred_to(self) -> bool:
        """Whether the job asks the throttle to decide on references.

        Unasked it does so only where that is cheaper with any sink: where the size is a column.
        """
        source, size = self.source, self.throttle.size
        if source.decide_on != "auto":
            return source.decide_on == "references"
        return source.format == "delta" and size is not None and size.isidentifier()


def load_settings(path: Path, overrides: Sequence[str] = ()) -> JobSettings:
    """Return the settings of a YAML file, with the overrides applied.

    Parameters
    ----------
    path : Path
        The file.
    overrides : Sequence[str]
        Overrides of the form `dotted.key=value`, with the value in YAML.

    Raises
    ------
    ConfigurationError
        If the file or a setting is wrong; the message names the key, and the nearest valid one for an unknown key.
    """
    try:
        document = read_yaml(path.read_bytes())
    except OSError as error:
        raise ConfigurationError(f"cannot read the settings {str(path)!r}: {error}") from None
    except PolicyError as error:
        raise ConfigurationError(f"{path}: {error}") from None
    if not isinstance(document, dict):
        raise ConfigurationError(
            f"{path}: the settings should be a mapping with the keys {', '.join(_keys(JobSettings))}"
        )
    for override in overrides:
        _override(document, override)
    return parse_settings(document)


def parse_settings(document: Mapping[str, object]) -> JobSettings:
    """Return the settings in a mapping.

    Examples
    --------
    >>> parse_settings({"check_point": "/tmp/c"})
    Traceback (most recent call last):
    spark_throttle.errors.ConfigurationError: source: a value is required; throttle: a value is required; \
sink: a value is required; checkpoint: a value is required; check_point: unknown key; did you mean checkpoint?
    """
    try:
        return JobSettings.model_validate(document)
    except ValidationError as error:
        raise ConfigurationError("; ".join(_problem(item) for item in error.errors(include_url=False))) from None


def _problem(item: Any) -> str:  # noqa: ANN401 - an ErrorDetails whose `ctx` depends on its type
    said, loc = item["msg"].removeprefix("Value error, "), item["loc"]
    if not loc:  # several sections do not go together
        return str(said)
    *scope, last = loc
    if item["type"] == "extra_forbidden":
        known = _keys(_model_at(JobSettings, scope))
        hint = did_you_mean(str(last), known) or f"; the keys here are {', '.join(known)}"
        said = f"unknown key{hint}"
    elif item["type"] == "missing":
        said = "a value is required"
    elif item["type"] != "value_error":
        said = f"{item['input']!r}: {said}"
    return f"{'.'.join(map(str, loc))}: {said}"


def _override(document: dict[str, object], override: str) -> None:
    """Replace one value; in a mapping of options the rest of the key, including its dots, is the option's name."""
    key, equals, text = override.partition("=")
    if not equals:
        raise ConfigurationError(f"--set {override}: write it as key=value, such as throttle.direction=dispatch")
    model: type[BaseModel] | None = JobSettings
    here, rest = document, key
    while "." in rest and model is not None:
        name, _, rest = rest.partition(".")
        inner = here.get(name)
        here[name] = here = dict(inner) if isinstance(inner, dict) else {}
        model = _model_of(model, name)
    try:
        here[rest] = read_yaml(text)
    except PolicyError as error:
        raise ConfigurationError(f"--set {key}: {error}") from None


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the model of the settings under `key`; `None` if the key holds a scalar or options."""
    field = model.model_fields.get(key)
    kinds = [] if field is None else [field.annotation, *get_args(field.annotation)]
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, _Settings)), None)


def _model_at(model: type[BaseModel], path: Sequence[Any]) -> type[BaseModel]:
    for key in path:
        model = _model_of(model, key) or model
    return model
