"""Replay: tasks with inputs, resources and durations become a timeline. Needs neither torch nor TVM."""

from cdmpp.simulate.engine import simulate
from cdmpp.simulate.flow import Flow
from cdmpp.simulate.key import Key
from cdmpp.simulate.task import Task
from cdmpp.simulate.timeline import Span, Timeline

__all__ = ["Flow", "Key", "Span", "Task", "Timeline", "simulate"]
