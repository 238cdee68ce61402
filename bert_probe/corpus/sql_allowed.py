"""The functions and table functions that a user's SQL may call; it may read only the tables of a store.

The lists leave out functions that reveal paths, settings or the process, that read files or run another
query, and functions whose memory or time in a single call DuckDB does not limit: repeat, replace,
levenshtein.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bert_probe.errors import SelectionError

_OPERATORS: Final = (
    "+ - * / // % ** ^ & | ~ << >> || @ ! !__postfix && @> <@ <-> <=> -> ->> ^@ ~~ !~~ ~~* !~~* ~~~"
)
_TEXT: Final = """
    array_to_string ascii bit_length char_length character_length chr contains
    ends_with ilike_escape instr lcase left left_grapheme length length_grapheme like_escape lower ltrim
    md5 nfc_normalize not_ilike_escape not_like_escape octet_length ord position prefix
    regexp_escape regexp_extract regexp_full_match regexp_matches reverse right right_grapheme
    rtrim sha1 sha256 split split_part starts_with str_split string_split string_to_array strip_accents
    strlen strpos substr substring substring_grapheme suffix trim ucase unicode upper hamming
    jaccard mismatches
"""
_NUMBERS: Final = """
    abs acos acosh add asin asinh atan atan2 atanh bit_count cbrt ceil ceiling cos cosh cot degrees
    divide even exp fdiv floor fmod gcd greatest greatest_common_divisor hash isfinite isinf isnan
    lcm least least_common_multiple ln log log10 log2 mod multiply nextafter pi pow power radians round
    round_even roundbankers sign signbit sin sinh sqrt subtract tan tanh trunc xor
"""
_LISTS: Final = """
    array_aggr array_aggregate array_append array_apply array_cat array_concat array_contains
    array_cosine_distance array_cosine_similarity array_cross_product array_distance array_distinct
    array_dot_product array_extract array_filter array_has array_has_all array_has_any array_indexof
    array_inner_product array_intersect array_length array_negative_dot_product
    array_negative_inner_product array_pop_back array_pop_front array_position array_prepend
    array_push_back array_push_front array_reverse array_reverse_sort array_select array_slice
    array_sort array_transform array_unique array_value array_where array_zip cardinality element_at
    flatten len list_aggr list_aggregate list_any_value list_append list_apply list_avg list_bool_and
    list_bool_or list_cat list_concat list_contains list_cosine_distance list_cosine_similarity
    list_count list_distance list_distinct list_dot_product list_element list_extract list_filter
    list_first list_has list_has_all list_has_any list_indexof list_inner_product list_intersect
    list_last list_max list_median list_min list_mode list_negative_dot_product
    list_negative_inner_product list_pack list_position list_prepend list_product list_reverse
    list_reverse_sort list_select list_slice list_sort list_stddev_pop list_stddev_samp
    list_sum list_transform list_unique list_value list_var_pop list_var_samp list_where list_zip map
    map_concat map_contains map_entries map_extract map_extract_value map_from_entries map_keys
    map_values row struct_concat struct_contains struct_extract struct_extract_at struct_insert
    struct_keys struct_pack struct_update struct_values union_value unnest
"""
_VALUES: Final = """
    __between coalesce constant_or_null if ifnull nullif can_cast_implicitly typeof
    json_array_length json_contains json_exists json_extract json_extract_path json_extract_path_text
    json_extract_string json_keys json_type json_valid json_value
     error random uuid gen_random_uuid
"""
_DATES: Final = """
    age century current_date date_add date_diff date_part date_sub date_trunc datediff datepart datesub
    datetrunc day dayname dayofmonth dayofweek dayofyear decade epoch epoch_ms era hour isodow isoyear
    last_day make_date make_time make_timestamp millennium microsecond millisecond minute month
    monthname now quarter second strftime strptime time_bucket to_days to_hours to_milliseconds
    to_minutes to_months to_seconds to_timestamp to_weeks to_years today try_strptime week weekday
    weekofyear year yearweek
"""
_AGGREGATES: Final = """
    any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_min
    arg_min_null argmax argmin array_agg avg bit_and bit_or bit_xor bool_and bool_or corr count count_if
    count_star countif covar_pop covar_samp entropy favg first fsum geomean geometric_mean
    histogram kahan_sum kurtosis kurtosis_pop last list mad max max_by mean median min min_by
    mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count regr_intercept
    regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev stddev_pop
    stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance wavg weighted_avg
"""
_WINDOWS: Final = """
    cume_dist dense_rank fill first_value lag last_value lead nth_value ntile percent_rank rank
    rank_dense row_number
"""

FUNCTIONS: Final = frozenset(
    " ".join((_OPERATORS, _TEXT, _NUMBERS, _LISTS, _VALUES, _DATES, _AGGREGATES, _WINDOWS)).split()
)
TABLE_FUNCTIONS: Final = frozenset(("range", "generate_series", "unnest", "duckdb_columns"))
_SHOW_TABLES: Final = ('"tables"', "tables")


def check(parsed: dict[str, Any], tables: frozenset[str], views: frozenset[str]) -> None:
    """Check that a query names only allowed functions and tables.

    Args:
        parsed: the query as DuckDB's `json_serialize_sql` describes it.
        tables: names of the tables of the store.
        views: names of DuckDB's internal views, which describe the process.

    Raises:
        SelectionError: a function or a table is not allowed, or DuckDB cannot describe the query.
    """
    if parsed.get("error"):
        reason = str(parsed.get("error_message", "")).split("\\n")[0].rstrip(".!")
        raise SelectionError(f"This query cannot be checked ({reason}). Write a single SELECT.")
    for node in _nodes(parsed):
        node_type = node.get("type")
        if node_type == "TABLE_FUNCTION" and "function" in node:
            _check_name(node["function"]["function_name"], TABLE_FUNCTIONS, "table function")
            node["function"] = {**node["function"], "function_name": None}
        elif node_type == "BASE_TABLE":
            _check_table(node, views)
        elif node_type == "SHOW_REF":
            name = str(node.get("table_name", ""))
            if name and name not in _SHOW_TABLES and name.strip('"').lower() not in tables:
                raise SelectionError(
                    "A query can show only TABLES or a table. Write SHOW TABLES or DESCRIBE rows."
                )
        if node.get("function_name") is not None:
            _check_name(node["function_name"], FUNCTIONS, "function")


def _check_name(name: str, allowed: frozenset[str], kind: str) -> None:
    if name.lower() not in allowed:
        raise SelectionError(
            f"The {kind} {name[:100]!r} is not allowed in queries here. Use another one, or open the files "
            "with DuckDB itself (docs/store.md)."
        )


def _check_table(node: dict[str, Any], views: frozenset[str]) -> None:
    path = [str(node.get(part) or "") for part in ("catalog_name", "schema_name", "table_name")]
    catalog, schema, table = (part.lower() for part in path)
    if catalog not in ("", "memory") or schema not in ("", "main") or table in views:
        name = ".".join(filter(None, path))
        raise SelectionError(
            f"A query can read only the tables of its store, not {name[:100]!r}. SHOW TABLES lists them."
        )


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects of a description, outer objects first."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
