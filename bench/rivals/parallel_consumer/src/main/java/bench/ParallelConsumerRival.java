package bench;

import com.fasterxml.jackson.annotation.JsonProperty;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import io.confluent.parallelconsumer.ParallelConsumerOptions;
import io.confluent.parallelconsumer.ParallelConsumerOptions.CommitMode;
import io.confluent.parallelconsumer.ParallelConsumerOptions.ProcessingOrder;
import io.confluent.parallelconsumer.ParallelStreamProcessor;
import io.confluent.parallelconsumer.PollContext;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Confluent Parallel Consumer: a pool of threads behind one consumer, in the order of keys, of
 * partitions, or in none. It has no dead letters: a record that fails is retried for ever.
 */
public final class ParallelConsumerRival {
    private static final Map<String, String> ENV = System.getenv();
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final ObjectReader ORDERS = JSON.readerFor(Order.class);
    private static final ObjectWriter TOTALS = JSON.writerFor(Total.class);
    private static final double PROBE_TOTAL = -1; // of an order that takes long
    private static final AtomicBoolean BEGUN = new AtomicBoolean();
    private static final AtomicLong OTHERS = new AtomicLong(); // ended, but for slow and hot ones
    private static final long REST = Long.parseLong(ENV.getOrDefault("BENCH_REST", "0"));

    record Order(
            @JsonProperty("order_id") long orderId, String customer, double total, String note) {}

    record Total(@JsonProperty("order_id") long orderId, double total) {}

    public static void main(String[] arguments) {
        String version = ParallelConsumerRival.class.getPackage().getImplementationVersion();
        System.out.println("parallel-consumer " + version);
        boolean exactlyOnce = "exactly-once".equals(ENV.get("BENCH_GUARANTEE"));
        String handler = ENV.get("BENCH_HANDLER");
        var options = ParallelConsumerOptions.<String, byte[]>builder()
                .consumer(consumer(exactlyOnce))
                .ordering(ProcessingOrder.valueOf(ENV.getOrDefault("BENCH_ORDERING", "KEY")))
                .maxConcurrency(Integer.parseInt(ENV.getOrDefault("BENCH_CONCURRENCY", "16")))
                // Its default of 2 records a thread grows by 1 each 2 s, and starves fast handlers.
                .messageBufferSize(10_000)
                // Its default of 5 s (100 ms for transactions) would distort the end of a run.
                .commitInterval(Duration.ofMillis(200))
                .commitMode(
                        exactlyOnce
                                ? CommitMode.PERIODIC_TRANSACTIONAL_PRODUCER
                                : CommitMode.PERIODIC_CONSUMER_ASYNCHRONOUS);
        boolean produces = "decoded".equals(handler) || "probed".equals(handler);
        if (exactlyOnce || produces) {
            options.producer(producer(exactlyOnce));
        }
        var processor = ParallelStreamProcessor.createEosStreamProcessor(options.build());
        Runtime.getRuntime().addShutdownHook(new Thread(processor::close));
        processor.subscribe(List.of(ENV.get("BENCH_TOPIC")));
        if (produces) {
            String results = ENV.get("BENCH_RESULTS");
            processor.pollAndProduce(context -> decoded(context, results));
        } else {
            processor.poll(handler(handler));
        }
    }

    private static KafkaConsumer<String, byte[]> consumer(boolean exactlyOnce) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", ENV.get("BENCH_SERVERS"));
        settings.put("group.id", ENV.get("BENCH_GROUP"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("max.poll.records", 5_000);
        settings.put("isolation.level", exactlyOnce ? "read_committed" : "read_uncommitted");
        return new KafkaConsumer<>(settings, new StringDeserializer(), new ByteArrayDeserializer());
    }

    private static KafkaProducer<String, byte[]> producer(boolean exactlyOnce) {
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", ENV.get("BENCH_SERVERS"));
        settings.put("linger.ms", 0); // each thread waits until its result is acknowledged
        if (exactlyOnce) {
            settings.put("transactional.id", "parallel-consumer-" + UUID.randomUUID());
        }
        return new KafkaProducer<>(settings, new StringSerializer(), new ByteArraySerializer());
    }

    private static Consumer<PollContext<String, byte[]>> handler(String name) {
        double seconds = Double.parseDouble(ENV.getOrDefault("BENCH_WAIT_S", "0.010"));
        long milliseconds = Math.round(1_000 * seconds);
        return switch (name) {
            case "no_op" -> context -> begin();
            case "wait" -> context -> sleep(milliseconds);
            case "wait_random" -> context -> sleepAtRandom();
            case "wait_slow" -> context -> sleepSlow(context.key(), milliseconds);
            case "wait_hot" -> context -> sleepHot(context.key(), milliseconds);
            default -> throw new IllegalArgumentException("BENCH_HANDLER=" + name);
        };
    }

    private static ProducerRecord<String, byte[]> decoded(
            PollContext<String, byte[]> context, String results) {
        begin();
        try {
            Order order = ORDERS.readValue(context.value());
            if (order.total == PROBE_TOTAL) {
                sleep(1_000);
            }
            byte[] total = TOTALS.writeValueAsBytes(new Total(order.orderId, order.total));
            return new ProducerRecord<>(results, context.key(), total);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void sleep(long milliseconds) {
        begin();
        try {
            Thread.sleep(milliseconds);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped); // so that the record counts as not handled
        }
    }

    /** Sleeps 0 to 5 ms, as in the table of its README; Thread.sleep would round to whole ones. */
    private static void sleepAtRandom() {
        begin();
        LockSupport.parkNanos(ThreadLocalRandom.current().nextLong(5_000_000));
    }

    /** Takes 500 ms for one of a hundred keys; the time of the others is told apart. */
    private static void sleepSlow(String key, long milliseconds) {
        if (key.endsWith("00")) {
            sleep(500);
        } else {
            sleep(milliseconds);
            endOther();
        }
    }

    /** Sleeps; the time of all keys but the hot one is told apart. */
    private static void sleepHot(String key, long milliseconds) {
        sleep(milliseconds);
        if (!key.equals("customer-hot")) {
            endOther();
        }
    }

    private static void endOther() {
        if (OTHERS.incrementAndGet() == REST) {
            writeTime("BENCH_REST_ENDED");
        }
    }

    /** Writes the time of the first call, for the benchmark. */
    private static void begin() {
        if (BEGUN.get() || !BEGUN.compareAndSet(false, true)) {
            return;
        }
        writeTime("BENCH_BEGUN");
    }

    private static void writeTime(String variable) {
        String now = Double.toString(System.nanoTime() / 1e9);
        try {
            Files.writeString(Path.of(ENV.get(variable)), now, StandardOpenOption.CREATE_NEW);
        } catch (FileAlreadyExistsException known) {
            return;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
