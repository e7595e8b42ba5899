"""What the results mean when taken together: tables that are more than a list of them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def revenue_by_minute(invoices: DataFrame) -> DataFrame:
    """Orders and revenue of each customer in each minute in which they ordered."""
    minute = f.date_trunc("minute", f.col("ordered_at"))
    return invoices.groupBy("customer", minute.alias("minute")).agg(
        f.count("*").alias("orders"), f.sum("total").alias("revenue")
    )
