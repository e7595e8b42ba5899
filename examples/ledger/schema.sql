-- For SQLite and PostgreSQL alike.

CREATE TABLE IF NOT EXISTS accounts (
    account TEXT PRIMARY KEY,
    balance BIGINT NOT NULL
);

-- The key is the record's position in Kafka and its time, since the offsets of a topic that is
-- deleted and created again begin at 0 again.
CREATE TABLE IF NOT EXISTS transfers (
    source_topic TEXT NOT NULL,
    source_partition INTEGER NOT NULL,
    source_offset BIGINT NOT NULL,
    source_timestamp BIGINT NOT NULL,
    transfer_id TEXT NOT NULL,
    debit TEXT NOT NULL,
    credit TEXT NOT NULL,
    amount BIGINT NOT NULL,
    PRIMARY KEY (source_topic, source_partition, source_offset, source_timestamp)
);
