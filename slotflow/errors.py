"""The errors a user can cause, each with a message that can be shown as it stands."""


class SlotflowError(Exception):
    """Base of slotflow's own errors."""


class InputError(SlotflowError):
    """Something given by the user cannot be used; the message names file, field and value."""


class OutputExistsError(SlotflowError):
    """An output stands already and would be overwritten."""


class NonFiniteError(SlotflowError):
    """A number that must be finite is not; the message says where and when."""


class StoppedError(SlotflowError):
    """A run was asked to stop (a signal of the system's); what is done stands."""
