"""The command `serving`: steps of serving by phase, and one engine under load."""

from typing import Any

import click

from seqpoint import front_door
from seqpoint.cli.options import load, output_options, plot_option, refuse_options, trace_argument
from seqpoint.cli.output import print_result, save_plot, working
from seqpoint.cli.scaling import NumberList

_LOAD = ("rates", "slots", "tokens", "kv_tokens", "seed", "plot")


@click.command("serving")
@trace_argument
@click.argument("others", type=click.Path(), nargs=-1)
@click.option("--requests", metavar="FILE", type=click.Path(), help="CSV or JSON file of lengths and arrivals.")
@click.option(
    "--rates", type=NumberList(), help="Requests a second.  [default: 25 to 95 % of what the engine can serve]"
)
@click.option("--slots", type=click.IntRange(1), help="Requests at once.  [default: 256]")
@click.option("--tokens", type=click.IntRange(1), help="Tokens of a step.  [default: 8192]")
@click.option("--kv-tokens", type=click.IntRange(1), help="Tokens of the cache.  [default: what fits the device]")
@click.option("--seed", type=click.IntRange(0), help="Draw Poisson arrivals.  [default: those of the file, scaled]")
@click.option("--device", metavar="NAME", help="Device of the trace, if it does not say.")
@plot_option("Write a chart of the times by rate here.")
@output_options
def command(trace: str, others: tuple[str, ...], requests: str | None, json_: bool, **options: Any) -> None:
    """Show the steps of serving by phase; with --requests, one engine under load.

    The annotations of vLLM, SGLang, ATOM and TensorRT-LLM tell phase, requests and tokens of each step. With
    --requests, steps of the trace are replayed at other sizes, and drive an engine with continuous batching: time to
    first token and per output token at p50, p90 and p99, by rate of arrival. OTHERS are further traces of the engine,
    such as one of prefill beside one of decode.

    With --json: serving (a row for each phase); with --requests: saturation_per_s, limits, times, rows and notes.

    \b
    seqpoint serving serve.trace
    seqpoint serving decode.trace prefill.trace --requests lengths.csv --rates 1,2,4 --slots 128
    """
    if requests is None:
        refuse_options((*_LOAD, "others"), "without --requests")
        print_result(front_door.serve(load(trace), device=options["device"]), json_)
        return
    names = {"slots": "most_requests", "tokens": "most_tokens"}
    given = {
        names.get(key, key): options[key] for key in (*_LOAD, "device") if key != "plot" and options[key] is not None
    }
    traces = [load(each) for each in (trace, *others)]
    with working("replaying steps"):
        served = front_door.serve(traces, requests, **given)
    save_plot(served.plot, options["plot"])
    print_result(served, json_)
