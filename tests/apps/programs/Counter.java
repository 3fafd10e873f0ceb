import java.nio.file.Files;
import java.nio.file.Path;
import java.security.MessageDigest;
import java.util.HexFormat;
import java.util.concurrent.Executors;

/** A JVM with a pool of threads and garbage to collect. Goes on slowly until it may hurry. */
public class Counter {
    public static void main(String[] arguments) throws Exception {
        int steps = Integer.parseInt(arguments[0]);
        var pool = Executors.newFixedThreadPool(2);
        byte[] state = new byte[0];
        for (int step = 0; step < steps; step++) {
            final byte[] before = state;
            final int now = step;
            state = pool.submit(() -> {
                var digest = MessageDigest.getInstance("SHA-256");
                digest.update(before);
                byte[] garbage = new byte[1 << 20];
                garbage[now % garbage.length] = (byte) now;
                digest.update(garbage);
                return digest.digest();
            }).get();
            System.out.println("step " + step + " " + HexFormat.of().formatHex(state));
            Thread.sleep(step < 60 || Files.exists(Path.of("hurry")) ? 10 : 500);
        }
        pool.shutdown();
        System.out.println("end");
    }
}
