package tests;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFs;
import org.apache.hadoop.fs.DelegateToFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FsConstants;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local files, without a process for each of them.
 *
 * <p>Hadoop without its native library, as PySpark has it, starts `chmod` for each file and folder that it makes, and
 * `readlink` for each that Spark's checkpoints look for. Here the system is called. All else is Hadoop's.
 */
public final class LocalFiles extends LocalFileSystem {

    public LocalFiles() {
        super(new Raw());
    }

    private static final class Raw extends RawLocalFileSystem {

        @Override
        public void setPermission(Path path, FsPermission permission) throws IOException {
            Files.setAttribute(pathToFile(path).toPath(), "unix:mode", (int) permission.toShort());
        }

        @Override
        public FileStatus getFileLinkStatus(Path path) throws IOException {
            return Files.isSymbolicLink(pathToFile(path).toPath())
                    ? super.getFileLinkStatus(path)
                    : getFileStatus(path);
        }
    }

    /** The same for programs that use Hadoop's other interface to files. */
    public static final class InContext extends ChecksumFs {

        public InContext(URI root, Configuration configuration) throws Exception {
            super(new RawInContext(root, configuration));
        }
    }

    private static final class RawInContext extends DelegateToFileSystem {

        RawInContext(URI root, Configuration configuration) throws Exception {
            super(root, new Raw(), configuration, FsConstants.LOCAL_FS_URI.getScheme(), false);
        }

        @Override
        public int getUriDefaultPort() {
            return -1;
        }

        @Override
        public boolean isValidName(String name) {
            return true;
        }
    }
}
