"""Measure what an upgrade keeps, or write docs/quality.md from what was measured.

python -m benchmarks.quality [--only PART …] [--pairs N …] [--seeds N] [--render]
"""

from __future__ import annotations

from pathlib import Path

import click
from rich.console import Console

from benchmarks.quality import costs, document, plan, running
from benchmarks.quality.data import Upgrade, read
from benchmarks.quality.records import Records
from benchmarks.vectors import DATA

ROOT = Path(__file__).parents[2]


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--only", "parts", multiple=True, type=click.Choice(plan.PARTS), help="Of the parts below; default all.")
@click.option("--data", multiple=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="More data.")
@click.option(
    "--pairs", multiple=True, type=click.IntRange(10), default=[500, 1000, 2000, 5000, 10000], show_default=True
)
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Draws of the pairs.")
@click.option("--peer-pairs", multiple=True, type=click.IntRange(10), default=[5000, 10000], show_default=True)
@click.option("--drift-pairs", type=click.IntRange(10), default=5000, show_default=True, help="Where drift is made.")
@click.option("--cost-methods", multiple=True, default=costs.FAMILIES, show_default=True, help="Fitted and stored.")
@click.option("--methods", multiple=True, help="Only those with this in their name.")
@click.option("--upgrades", multiple=True, help='Only those with this in their name, such as "l3 → minilm_l6".')
@click.option("--all-sizes", is_flag=True, help="Trained methods at few pairs too.")
@click.option("--fresh", is_flag=True, help="Forget the results of what is selected, and measure it anew.")
@click.option("--render", "only_render", is_flag=True, help="Measure nothing.")
@click.option(
    "--records", type=click.Path(path_type=Path), default=ROOT / "build/quality.jsonl", help="build/quality.jsonl"
)
@click.option("--out", type=click.Path(path_type=Path), default=ROOT / "docs/quality.md", help="docs/quality.md")
def main(
    parts: tuple[str, ...],
    data: tuple[Path, ...],
    pairs: tuple[int, ...],
    seeds: int,
    peer_pairs: tuple[int, ...],
    drift_pairs: int,
    cost_methods: tuple[str, ...],
    methods: tuple[str, ...],
    upgrades: tuple[str, ...],
    all_sizes: bool,
    fresh: bool,
    only_render: bool,
    records: Path,
    out: Path,
) -> None:
    """Measure what an upgrade of embedding models keeps of a full re-embedding, and write docs/quality.md.

    \b
    sizes   every method, upgrade and number of pairs: retention of recall and rank, overlap, rerank, costs,
            and the measures that need no labels
    peers   four other packages on the same pairs
    drift   a rotation with growing noise in place of the legacy model
    cost    a switch beside re-indexing and beside two indexes, on a PostgreSQL in a temporary directory

    The data are DRIFT_PG_QUALITY_DATA (or ../shared/data/pydocs.npz), and the files of --data, with arrays of
    the same names. Each result is appended to build/quality.jsonl as it is there: interrupted, the same command
    goes on where it was. What is already there is not measured again (--fresh does).

    \b
    Examples:
      python -m benchmarks.quality                                       everything: hours
      python -m benchmarks.quality --pairs 500 --seeds 1 --only sizes --methods procrustes
      python -m benchmarks.quality --fresh --methods mixture             again, after a change to mixtures
      python -m benchmarks.quality --render                              the document alone
    """
    console, kept = Console(stderr=True), Records(records)
    problems = 0
    if not only_render:
        choice = plan.Choice(
            parts or plan.PARTS, pairs, seeds, peer_pairs, drift_pairs, cost_methods, methods, upgrades, all_sizes
        )
        found = _read([*([DATA] if DATA.is_file() else []), *data])
        problems = running.measure(choice, found, kept, fresh=fresh, console=console)
    document.write(kept, out)
    console.print(f"wrote {out} and its figures from {sum(1 for _ in kept):,} results")
    if problems:
        raise click.ClickException(f"{problems} runs failed, see above; the same command tries them again")


def _read(paths: list[Path]) -> list[Upgrade]:
    if not paths:
        raise click.ClickException(f"no data: there is no {DATA}; set DRIFT_PG_QUALITY_DATA or give --data PATH")
    return [upgrade for path in paths for upgrade in read(path)]


if __name__ == "__main__":
    main()
