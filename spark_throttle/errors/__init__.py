"""Every error spark-throttle raises: the class says what the caller should do.

::

    ThrottleError
    ├── PolicyError                 fix the policy document, then try again
    │   └── StoredPolicyError       correct the document that a store holds
    ├── ConfigurationError          fix the call or the job's settings, then try again
    │   ├── CheckpointMismatchError put the checkpoint and its sinks back to the same batch
    │   ├── DrainedError            start a new checkpoint from the sources' positions
    │   ├── DefinitionChangedError  start once with the old definition
    │   ├── ForeignFilesError       use Spark's writer for the table
    │   │   └── TableOutOfReachError  start again when its store answers
    │   └── NotInstalledError       install what it names where it names, then start again
    ├── TakenOverError              let the newer run go on, or stop it and start again
    ├── StoredFormatError           stop: the stored bytes were written by another version, or are damaged
    │   ├── UnknownVersionError
    │   └── DamagedError
    ├── EpochMissingError           restore the file, or start a new checkpoint
    ├── QueueOverflowError          raise the bounds, then restart: nothing was lost
    ├── Backpressure                call the destination again later, with the same key
    ├── TurnTimeoutError            wait longer, send less, or raise a limit: nothing was charged
    ├── PacerClosedError            make a new pacer: nothing was charged
    ├── DeliveryError               repair the destination, then start again: the batch is sent again
    ├── SourceChangedError          restore the source as it was, then start again: nothing was lost
    ├── SignInUnavailableError      try again later: the sign-in provider does not answer
    ├── FileUnusableError           make the file what it must be, as the message says
    ├── AddressInUseError           end what listens there, or choose another address
    └── StoreError                  a policy store did not carry out a request
        ├── NotFoundError           ask for an entity that exists, or create it first
        ├── DuplicateError          update it instead, or choose another name
        ├── NotPermittedError       ask an administrator: the change is not its author's to make
        ├── UnconfirmedError        look at what the change costs, then confirm it: nothing was changed
        ├── InUseError              detach the users that it names, then try again
        ├── ConflictError           read it again, then decide whether to try again: nothing was changed
        ├── UnwantedError           ask for less: nobody waited any more, and nothing was changed
        ├── StoreUnavailableError   try again later, or repair the store: nothing was changed
        └── OutcomeUnknownError     check whether the change was committed before trying again

Messages carry the value, the bound it broke and the remedy.

It may import `remedies`. Start with `job`; every name is imported from here.
"""

from __future__ import annotations

from spark_throttle.errors.job import (
    RESTORE_CHECKPOINT,
    AddressInUseError,
    Backpressure,
    CheckpointMismatchError,
    ConfigurationError,
    DamagedError,
    DefinitionChangedError,
    DeliveryError,
    DrainedError,
    EpochMissingError,
    FileUnusableError,
    ForeignFilesError,
    NotInstalledError,
    PacerClosedError,
    PolicyError,
    QueueOverflowError,
    SignInUnavailableError,
    SourceChangedError,
    StoredFormatError,
    StoredPolicyError,
    TableOutOfReachError,
    TakenOverError,
    ThrottleError,
    TurnTimeoutError,
    UnknownVersionError,
    did_you_mean,
)
from spark_throttle.errors.store import (
    ConflictError,
    DuplicateError,
    InUseError,
    NotFoundError,
    NotPermittedError,
    OutcomeUnknownError,
    StoreError,
    StoreUnavailableError,
    UnconfirmedError,
    UnwantedError,
)

__all__ = [
    "RESTORE_CHECKPOINT",
    "AddressInUseError",
    "Backpressure",
    "CheckpointMismatchError",
    "ConfigurationError",
    "ConflictError",
    "DamagedError",
    "DefinitionChangedError",
    "DeliveryError",
    "DrainedError",
    "DuplicateError",
    "EpochMissingError",
    "FileUnusableError",
    "ForeignFilesError",
    "InUseError",
    "NotFoundError",
    "NotInstalledError",
    "NotPermittedError",
    "OutcomeUnknownError",
    "PacerClosedError",
    "PolicyError",
    "QueueOverflowError",
    "SignInUnavailableError",
    "SourceChangedError",
    "StoreError",
    "StoreUnavailableError",
    "StoredFormatError",
    "StoredPolicyError",
    "TableOutOfReachError",
    "TakenOverError",
    "ThrottleError",
    "TurnTimeoutError",
    "UnconfirmedError",
    "UnknownVersionError",
    "UnwantedError",
    "did_you_mean",
]

# A traceback shows, and a pickle holds, the name by which users import an error: the modules below may change.
for _name in __all__:
    if isinstance(_found := globals()[_name], type):
        _found.__module__ = __name__
