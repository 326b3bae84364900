"""The base of a recipe's sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Unknown keys are errors, values are not coerced loosely."""

    model_config = ConfigDict(extra="forbid", validate_default=True, use_attribute_docstrings=True)
