"""How clients reach a node: the gRPC services, over the replica that the node holds."""

from resourcelease.frontdoor.door import FrontDoor
from resourcelease.frontdoor.replica import Replica
from resourcelease.frontdoor.settings import DoorLimits, DoorSettings

__all__ = ["DoorLimits", "DoorSettings", "FrontDoor", "Replica"]
