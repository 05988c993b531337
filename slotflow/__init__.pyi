from slotflow.api import Model as Model
from slotflow.api import Posterior as Posterior
from slotflow.api import Source as Source
from slotflow.api import load_model as load_model
from slotflow.api import read as read

__version__: str
