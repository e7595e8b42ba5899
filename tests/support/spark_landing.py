"""Results of every kind for tables of every kind: what a first run of the Spark job lands."""

from tests.support.spark_service import STAMP_MS, Service
from tests.support.tables import spark_table

ORDERS = 120
IN_TRANSACTION = 20

ORDER = "order_id BIGINT, customer STRING, total DOUBLE"
WITH_PLACE = f"{ORDER}, at STRUCT<city: STRING>"
REVENUE = {"schema": WITH_PLACE, "transform": "transforms:revenue"}
TABLES = (
    spark_table("orders", schema=WITH_PLACE)
    + spark_table("revenue", **REVENUE, mode="complete")
    + spark_table("latest", **REVENUE, mode="update", merge_on=["customer", "minute"])
    + spark_table("refunds", select="refunds", format="parquet", replays=True)
    + spark_table(
        "last", schema="order_id BIGINT, customer STRING", mode="update", merge_on=["customer"]
    )
    + spark_table("lake", format="iceberg", schema=ORDER)
    + spark_table(
        "ice", format="iceberg", schema=WITH_PLACE, partition_by=["customer"], dedupe=True
    )
    + spark_table(
        "sides",
        schema="order_id BIGINT, total DOUBLE",
        transform="transforms:sides",
        dedupe=True,
    )
)

ODD_RESULTS: dict[int, bytes | None] = {
    0: b'{"order_id": 1, "at": {"city": "Ulm"}}',
    1: b'{"order_id": "abc", "total": 2.5}',
    2: b'{"order_id": 2, "coupon": "x"}',
    3: b'{"order_id": 3, "at": {"city": "Ulm", "zip": 1}}',
    4: b'{"order_id": 4}{"order_id": 5}',
    5: b'[{"order_id": 6}]',
    6: b"no json",
    7: None,
}
STRAYS: dict[str | None, bytes] = {
    None: b"x",
    "": b"x",
    "orders/1/2": b"x",
    "orders/a/b/c": b"x",
    f"orders/1/2/{2**63}": b"x",
}


def send_all_kinds(made: Service) -> None:
    """Ordinary orders, some in a transaction, what does not fit, and records of others."""
    made.send_orders(0, ORDERS - IN_TRANSACTION)
    made.send_in_transactions(ORDERS - IN_TRANSACTION, IN_TRANSACTION)
    for offset, value in ODD_RESULTS.items():
        made.send(value, f"orders/9/{offset}/{STAMP_MS}")
    for source, value in STRAYS.items():
        made.send(value, source)
    made.send(b'{"order_id": 10}', f"orders/9/10/{STAMP_MS}", index="2")
    made.send(b'{"order_id": 11}', "orders/9/11/-1", table="refunds")
    made.send(b'{"order_id": 12}', f"orders/9/12/{STAMP_MS}", table="refunds", replay="r")
    made.send(b'{"order_id": 13}', f"orders/9/13/{STAMP_MS}", replay="r")
    made.send(b'{"order_id": 14}', f"orders/9/14/{STAMP_MS}")
    made.send(b'{"order_id": 14}', f"orders/9/14/{STAMP_MS}")
    made.flush()
