import com.sun.management.ThreadMXBean;
import io.github.bucket4j.Bucket;
import io.github.bucket4j.TimeMeter;
import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Locale;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import java.util.zip.CRC32;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.stats.TokenBucket;
import org.apache.pulsar.broker.qos.AsyncTokenBucket;

/**
 * The benchmark stream through token buckets of the JVM: {@code Peers STREAM REPEATS}.
 *
 * <p>Every namespace has a bucket of 50 messages a second (100 at most) and one of 65,536 bytes a second (131,072 at
 * most), both full at first; message i arrives at i x 100 us of virtual time. A peer decides the messages one by one, on
 * one thread. Of every pass a line of JSON: what was admitted, the CRC-32 of the decisions, CPU time and wall time.
 */
public final class Peers {
  private static final int MESSAGES_PER_SECOND = 50;
  private static final int BYTES_PER_SECOND = 65_536;
  private static final int BURST_SECONDS = 2;
  private static final long NANOS_BETWEEN = 100_000;
  private static final long START_NANOS = TimeUnit.DAYS.toNanos(20_000);

  /** Decides one message. */
  private interface Limiter {
    boolean admits(int key, int sizeBytes, long nowNanos);
  }

  public static void main(String[] arguments) throws IOException {
    ByteBuffer stream = ByteBuffer.wrap(Files.readAllBytes(Path.of(arguments[0]))).order(ByteOrder.LITTLE_ENDIAN);
    int repeats = Integer.parseInt(arguments[1]);
    int keys = stream.getInt(8);
    int messages = stream.getInt(12);
    int[] key = new int[messages];
    int[] sizeBytes = new int[messages];
    stream.position(16);
    stream.asIntBuffer().get(key).get(sizeBytes);
    for (int pass = -2; pass < repeats; pass++) { // two to warm up
      run("kafka", () -> kafka(keys), key, sizeBytes, pass);
      run("pulsar", () -> pulsar(keys), key, sizeBytes, pass);
      run("bucket4j", () -> bucket4j(keys), key, sizeBytes, pass);
    }
  }

  private static void run(String peer, Supplier<Limiter> make, int[] key, int[] sizeBytes, int pass) {
    Limiter limiter = make.get();
    byte[] decisions = new byte[key.length];
    ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
    long cpu = threads.getCurrentThreadCpuTime();
    long wall = System.nanoTime();
    for (int i = 0; i < key.length; i++) {
      decisions[i] = (byte) (limiter.admits(key[i], sizeBytes[i], START_NANOS + i * NANOS_BETWEEN) ? 1 : 0);
    }
    wall = System.nanoTime() - wall;
    cpu = threads.getCurrentThreadCpuTime() - cpu;
    if (pass >= 0) {
      CRC32 crc = new CRC32();
      crc.update(decisions);
      int admitted = 0;
      for (byte decision : decisions) {
        admitted += decision;
      }
      System.out.printf(
          Locale.ROOT,
          "{\"peer\":\"%s\",\"admitted\":%d,\"crc32\":\"%08x\",\"cpu_ns\":%d,\"wall_ns\":%d}%n",
          peer, admitted, crc.getValue(), cpu, wall);
    }
  }

  /** KIP-599, strict: check both, then record both. */
  private static Limiter kafka(int keys) {
    MetricConfig messages = config(MESSAGES_PER_SECOND);
    MetricConfig bytes = config(BYTES_PER_SECOND);
    TokenBucket[] ofMessages = new TokenBucket[keys];
    TokenBucket[] ofBytes = new TokenBucket[keys];
    for (int k = 0; k < keys; k++) {
      ofMessages[k] = new TokenBucket();
      ofBytes[k] = new TokenBucket();
    }
    return (key, sizeBytes, nowNanos) -> {
      long nowMs = nowNanos / 1_000_000;
      if (ofMessages[key].measure(messages, nowMs) < 0 || ofBytes[key].measure(bytes, nowMs) < 0) {
        return false;
      }
      ofMessages[key].record(messages, 1, nowMs);
      ofBytes[key].record(bytes, sizeBytes, nowMs);
      return true;
    };
  }

  private static MetricConfig config(double perSecond) {
    return new MetricConfig()
        .quota(Quota.upperBound(perSecond))
        .samples(BURST_SECONDS)
        .timeWindow(1, TimeUnit.SECONDS);
  }

  /** PIP-322: check both, then consume both. */
  private static Limiter pulsar(int keys) {
    long[] now = {START_NANOS};
    AsyncTokenBucket[] ofMessages = new AsyncTokenBucket[keys];
    AsyncTokenBucket[] ofBytes = new AsyncTokenBucket[keys];
    for (int k = 0; k < keys; k++) {
      ofMessages[k] = bucket(MESSAGES_PER_SECOND, now);
      ofBytes[k] = bucket(BYTES_PER_SECOND, now);
    }
    return (key, sizeBytes, nowNanos) -> {
      now[0] = nowNanos;
      if (!ofMessages[key].containsTokens() || !ofBytes[key].containsTokens()) {
        return false;
      }
      ofMessages[key].consumeTokens(1);
      ofBytes[key].consumeTokens(sizeBytes);
      return true;
    };
  }

  private static AsyncTokenBucket bucket(long perSecond, long[] now) {
    long capacity = perSecond * BURST_SECONDS;
    return AsyncTokenBucket.builder()
        .rate(perSecond)
        .capacity(capacity)
        .initialTokens(capacity)
        .clock(() -> now[0])
        .build();
  }

  /** Take both or none: a message larger than what is there does not pass. */
  private static Limiter bucket4j(int keys) {
    long[] now = {START_NANOS};
    TimeMeter clock =
        new TimeMeter() {
          @Override
          public long currentTimeNanos() {
            return now[0];
          }

          @Override
          public boolean isWallClockBased() {
            return false;
          }
        };
    Bucket[] ofMessages = new Bucket[keys];
    Bucket[] ofBytes = new Bucket[keys];
    for (int k = 0; k < keys; k++) {
      ofMessages[k] = bucket(MESSAGES_PER_SECOND, clock);
      ofBytes[k] = bucket(BYTES_PER_SECOND, clock);
    }
    return (key, sizeBytes, nowNanos) -> {
      now[0] = nowNanos;
      return ofMessages[key].tryConsume(1) && ofBytes[key].tryConsume(sizeBytes);
    };
  }

  private static Bucket bucket(long perSecond, TimeMeter clock) {
    return Bucket.builder()
        .addLimit(limit -> limit.capacity(perSecond * BURST_SECONDS).refillGreedy(perSecond, Duration.ofSeconds(1)))
        .withCustomTimePrecision(clock)
        .build();
  }
}
