"""Functions that make a table of all results together."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def revenue_by_minute(invoices: DataFrame) -> DataFrame:
    """Returns the orders and the revenue of each customer, by minute."""
    minute = f.date_trunc("minute", f.col("ordered_at"))
    return invoices.groupBy("customer", minute.alias("minute")).agg(
        f.count("*").alias("orders"), f.sum("total").alias("revenue")
    )
