import json

import pytest

from sgcl.errors import InputError
from sgcl.recipes import SHORT, Recipe
from sgcl.report import (
    PAPER_ACCURACY,
    default_table,
    embed_table,
    paper_table,
    precision_table,
    results_table,
    stopping_table,
    update,
    with_tables,
)

BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


def trained(seed, per_split, second, **changes):
    return {
        "key": f"{seed} {changes}", "graph": "photo", "method": "sgcl", "protocol": "validation", "seed": seed,
        "per_split": per_split, "probe": "linear probe", "checkpoints": {"every": 20},
        "second_probe": {"per_split": second, "probe": "logistic regression"},
        "settings": {"recipe": {"steps": 400, "lr": 5e-4}}, "command": "sgcl bench photo", **changes,
    }  # fmt: skip


def with_precision(record, precision):
    return {**record, "settings": {**record["settings"], "precision": precision}}


def free(name, per_split, graph="photo"):
    return {
        "key": name, "graph": graph, "method": name, "protocol": "validation", "seed": None, "per_split": per_split,
        "probe": "linear probe", "command": "sgcl bench photo",
        "second_probe": {"per_split": [one + 1 for one in per_split], "probe": "logistic regression"},
    }  # fmt: skip


RECORDS = [
    free("raw features", [80.0, 82.0]),
    free("one hop", [90.0, 90.0]),
    free("two hops", [91.0, 92.0]),
    trained(0, [92.0, 94.0], [93.0, 93.0]),
    trained(1, [94.0, 96.0], [94.0, 96.0]),
]


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_splits_of_all_seeds_are_pooled():
    header, rule, row, second = rows(results_table(RECORDS))
    # 92, 94, 94, 96: mean 94, squares 4, 0, 0, 4, deviation sqrt(2). Second probe: 93, 93, 94, 96: squares 1, 1, 0, 4.
    assert dict(zip(header, row, strict=True)) == {
        "graph": "photo",
        "judge": "linear probe",
        "paper": "93.46 ± 0.30",
        "sgcl": "94.00 ± 1.41",
        "raw features": "81.00 ± 1.00",
        "one hop": "90.00 ± 0.00",
        "two hops": "91.50 ± 0.50",
        "side by side": "-",
        "steps": "400",
        "precision": "fp32",
        "seeds × splits": "2 × 2",
        "command": "`sgcl bench photo`",
    }
    assert second[:6] == ["photo", "logistic regression", "-", "94.00 ± 1.22", "82.00 ± 1.00", "91.00 ± 0.00"]
    assert set(rule) == {"---"}


def test_graphs_keep_their_order_and_their_own_baselines():
    records = [*RECORDS, trained(0, [70.0], [71.0], graph="mine"), free("raw features", [60.0], "mine")]
    photo, _, mine, second = rows(results_table(records))[2:]
    assert (photo[0], photo[4]) == ("photo", "81.00 ± 1.00")
    assert mine[:6] == ["mine", "linear probe", "-", "70.00 ± 0.00", "60.00 ± 0.00", "-"]
    assert second[:6] == ["mine", "logistic regression", "-", "71.00 ± 0.00", "61.00 ± 0.00", "-"]


def test_what_was_chosen_on_test_nodes_is_not_in_the_table():
    records = [*RECORDS, trained(2, [99.0], [99.0], protocol="paper_best_test")]
    assert results_table(records) == results_table(RECORDS)
    assert len(rows(results_table(records[:3] + records[-1:]))) == 2  # no line at all


def test_recipes_are_never_pooled():
    longer = {"recipe": {"steps": 9_000, "lr": 5e-4}}
    records = [
        *RECORDS,
        trained(0, [90.0], [90.0], settings=longer),
        trained(0, [80.0], [80.0], checkpoints={"every": 9}),  # judged more often: not shown, whatever it records
        trained(
            0,
            [80.0],
            [80.0],
            checkpoints={"every": 8},
            settings={"recipe": {"steps": 400, "lr": 5e-4, "minimise": False}},
        ),
    ]
    found = [(row[3], row[8], row[10]) for row in rows(results_table(records))[2::2]]
    assert found == [("94.00 ± 1.41", "400", "2 × 2"), ("90.00 ± 0.00", "9000", "1 × 1")]


def test_precisions_are_never_pooled_but_paired():
    other = [with_precision(trained(seed, [92.0 + seed, 94.5], [90.0] * 2), "bf16") for seed in (0, 1)]
    found = [(row[3], row[9]) for row in rows(results_table([*RECORDS, *other]))[2::2]]
    assert found == [("93.50 ± 1.06", "bf16")]
    assert rows(results_table([*other, *RECORDS])) == rows(results_table([*RECORDS, *other]))
    # Differences 0, 0.5 and -1, -1.5: mean -0.5, squares 0.25, 1, 0.25, 1, standard error sqrt(2.5 / 3 / 4) = 0.456.
    assert rows(precision_table([*RECORDS, *other]))[2][:4] == ["photo", "-0.50", "-1.39 to +0.39", "4"]
    assert len(rows(precision_table(RECORDS))) == 2


def duo(seed, per_split, second, **changes):
    settings = {"recipe": {"steps": 400, "dim": 512}, "early_stop": True}
    return trained(
        seed, per_split, second, method="duo", settings=settings,
        checkpoints={"every": 20, "validation_accuracy": {str(100 + 50 * seed): 95.0}}, **changes,
    )  # fmt: skip


def test_the_default_is_paired_with_the_papers_method_and_with_what_costs_no_training():
    records = [
        *RECORDS,
        free("side by side", [94.0, 94.0]),
        duo(0, [95.0, 95.0], [95.0, 97.0]),
        duo(1, [95.0, 97.0], [96.0, 97.0]),
        {**duo(2, [99.0, 99.0], [99.0, 99.0]), "settings": {"recipe": {"steps": 400}}},  # not stopped without labels
    ]
    header, _, first, second = rows(default_table(records))
    # Seeds averaged: duo 95, 96; sgcl 93, 95: differences 2, 1, standard error sqrt(0.5 / 2) = 0.5; free 1, 2.
    assert dict(zip(header, first, strict=True)) == {
        "graph": "photo",
        "judge": "linear probe",
        "duo": "95.50 ± 0.87",
        "more than sgcl": "+1.50 ± 1.00",
        "more than side by side": "+1.50 ± 1.00",
        "columns": "512",
        "steps": "100-150",
        "seeds × splits": "2 × 2",
        "command": "`sgcl bench photo`",
    }
    # 95.5, 97 against 93.5, 94.5: 2, 2.5; against 95, 95: 0.5, 2.
    assert second[1:5] == ["logistic regression", "96.25 ± 0.83", "+2.25 ± 0.50", "+1.25 ± 1.50"]
    assert rows(default_table(records[:3] + records[-3:]))[2][3] == "-"
    assert rows(results_table(records)) == rows(results_table([*RECORDS, free("side by side", [94.0, 94.0])]))


def test_the_papers_schedule_stands_in_a_table_of_its_own_by_either_protocol():
    full = {"settings": {"recipe": {"steps": 10_000, "lr": 1e-4}}}
    records = [
        *RECORDS,
        trained(0, [91.0, 93.0], [92.0, 92.0], **full),
        trained(0, [95.0, 95.0], [92.0, 92.0], protocol="paper_best_test", **full),
    ]
    assert results_table(records) == results_table(RECORDS)
    found = [row[1:7] for row in rows(paper_table(records))[2:]]
    assert found == [
        ["linear probe", "by validation labels", "-", "92.00 ± 1.00", "94.00 ± 1.41", "fp32"],
        ["logistic regression", "last", "-", "92.00 ± 0.00", "94.00 ± 1.22", "fp32"],
        ["linear probe", "by **test** labels, as the paper's", "93.46 ± 0.30", "95.00 ± 0.00", "-", "fp32"],
    ]


def test_what_stopping_without_labels_loses_is_paired_by_seed():
    chosen = [
        {**duo(seed, [96.0, 98.0 - seed], [0.0, 0.0]), "settings": {"recipe": {"steps": 400}}} for seed in (0, 1, 2)
    ]
    stopped = [duo(seed, [95.0, 97.0], [0.0, 0.0]) for seed in (0, 1)]
    exact = [{**one, "probe": "logistic regression"} for one in stopped]
    (row,) = rows(stopping_table([*RECORDS, *chosen, *stopped, *exact]))[2:]
    # Seeds averaged: 96, 97.5 against 95, 97: 1, 0.5, standard error sqrt(0.125 / 2) = 0.25.
    assert row[:6] == ["photo", "linear probe", "96.00 ± 1.00", "96.75 ± 0.83", "+0.75 ± 0.50", "2 × 2"]


def test_a_seed_counts_once_the_later_record():
    again = trained(1, [92.0, 94.0], [93.0, 93.0])
    assert rows(results_table([*RECORDS, again]))[2][3] == "93.00 ± 1.00"


def test_no_records_make_an_empty_table():
    assert len(rows(results_table([]))) == 2


def test_the_papers_figures_are_of_graphs_that_are_known():
    assert set(PAPER_ACCURACY) == set(SHORT) - {"digits"} and Recipe().steps == SHORT["digits"].steps


def test_only_what_is_between_the_marks_is_replaced():
    readme = f"# Title\n\n{BEGIN}\nold\n| x |\n{END}\n\nafter\n"
    assert embed_table(readme, "results", "new \\1 \\g<0>") == f"# Title\n\n{BEGIN}\nnew \\1 \\g<0>\n{END}\n\nafter\n"
    assert embed_table(embed_table(readme, "results", "a"), "results", "b") == embed_table(readme, "results", "b")
    assert embed_table(f"{BEGIN}{END} between {BEGIN}{END}", "results", "t").count(" between ") == 1


def test_a_text_without_any_mark_is_refused():
    with pytest.raises(InputError, match=r"^report: no lines <!-- NAME: begin --> with NAME one of default, results"):
        with_tables("# Title\n", RECORDS)


@pytest.mark.parametrize("readme", ["", f"{BEGIN}\n", f"{END}\n{BEGIN}\n"])
def test_missing_marks_are_said(readme):
    with pytest.raises(InputError, match=rf"^report: the text has no lines {BEGIN} and {END} to put"):
        embed_table(readme, "results", "table")


def test_readme_is_updated_from_a_folder_of_results(tmp_path):
    readme = tmp_path / "README.md"
    for name, part in (("a", RECORDS[:2]), ("b", RECORDS[2:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
    second, third = ((f"<!-- {name}: begin -->", f"<!-- {name}: end -->") for name in ("precision", "default"))
    text = "\n".join(["a", BEGIN, END, "b", *second, *third, "c\n"])
    readme.write_text(text, encoding="utf-8")
    update(tmp_path, readme)
    tables = results_table(RECORDS), precision_table(RECORDS), default_table(RECORDS)
    parts = [BEGIN, tables[0], END, "b", second[0], tables[1], second[1], third[0], tables[2], third[1]]
    wanted = "\n".join(["a", *parts, "c\n"])
    assert readme.read_text(encoding="utf-8") == wanted == with_tables(text, RECORDS)


def test_a_readme_is_left_alone_if_there_are_no_results(tmp_path):
    (tmp_path / "README.md").write_text(f"{BEGIN}\nold\n{END}\n")
    with pytest.raises(InputError, match=r"none: holds no records in files \*\.jsonl; make some with sgcl bench$"):
        update(tmp_path / "none", tmp_path / "README.md")
    assert "old" in (tmp_path / "README.md").read_text()
