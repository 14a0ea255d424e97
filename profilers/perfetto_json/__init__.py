"""A trace as the JSON that ui.perfetto.dev and Chrome's viewer open, and that the Kineto reader reads back."""

from profilers.perfetto_json.events import export_perfetto

__all__ = ["export_perfetto"]
