import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.Scanner;
import kafka.admin.ConfigCommand;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs the commands of kafka-configs, all in one JVM.
 *
 * <p>A line of the input is the words of a command, as a list in JSON; for each a line of the output has whether it
 * succeeded, and what it printed.
 */
public final class KafkaConfigsSession {

    private static final class EndOfCommand extends RuntimeException {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        ObjectMapper json = new ObjectMapper();
        // Scala keeps the stream that it finds first, so all commands print to the same.
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        ByteArrayOutputStream complained = new ByteArrayOutputStream();
        System.setOut(new PrintStream(printed, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(complained, true, StandardCharsets.UTF_8));
        Exit.setExitProcedure((status, message) -> {
            throw new EndOfCommand();
        });
        Scanner commands = new Scanner(System.in, StandardCharsets.UTF_8);
        while (commands.hasNextLine()) {
            printed.reset();
            complained.reset();
            boolean isDone = true;
            try {
                ConfigCommand.main(json.readValue(commands.nextLine(), String[].class));
            } catch (EndOfCommand ended) {
                isDone = false;
            }
            answers.println(json.writeValueAsString(Map.of(
                    "is_done", isDone,
                    "printed", printed.toString(StandardCharsets.UTF_8),
                    "complained", complained.toString(StandardCharsets.UTF_8))));
        }
    }
}
