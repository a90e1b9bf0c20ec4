import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.FileInputStream;
import java.io.IOException;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Properties;
import java.util.Scanner;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Runs the commands of pulsar-admin, all in one JVM.
 *
 * <p>The argument is its client.conf. A line of the input is the words of a command, as a list in JSON; for each a line of
 * the output has whether it succeeded, and what it printed.
 */
public final class PulsarAdminSession {

    private static final class Tool extends PulsarAdminTool {
        Tool(Properties settings) throws Exception {
            super(settings);
        }

        boolean succeeds(String[] words) {
            return run(words);
        }
    }

    public static void main(String[] arguments) throws Exception {
        Properties settings = read(arguments[0]);
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        ObjectMapper json = new ObjectMapper();
        Scanner commands = new Scanner(System.in, StandardCharsets.UTF_8);
        while (commands.hasNextLine()) {
            String[] words = json.readValue(commands.nextLine(), String[].class);
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            ByteArrayOutputStream complained = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
            boolean isDone = new Tool(settings).succeeds(words);
            answers.println(json.writeValueAsString(Map.of(
                    "is_done", isDone,
                    "printed", printed.toString(StandardCharsets.UTF_8),
                    "complained", complained.toString(StandardCharsets.UTF_8))));
        }
        // The tool leaves threads of its HTTP client behind.
        System.exit(0);
    }

    private static Properties read(String path) throws IOException {
        Properties settings = new Properties();
        try (FileInputStream file = new FileInputStream(path)) {
            settings.load(file);
        }
        return settings;
    }
}
