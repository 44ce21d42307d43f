#!/usr/bin/env bash
# Apache Commons VFS: a changed file on SFTP is read by its old size, cut or padded with zeros; seek() may do nothing.
#
# Seen with: commons-vfs2 2.10.0 on JSch 2.28.8, Apache MINA SSHD 2.20.0 as the server, OpenJDK 17; VFS's local files
# for comparison.
#
# FileContent.getByteArray() and getString() read as many bytes as the file had when its FileObject was first asked for
# anything. SFTP's attributes are kept until refresh() or close(); local files are asked anew. What is missing comes as
# zeros, what is more is left out, and neither is an error. In a RandomAccessContent, skipBytes() moves on without
# counting: getFilePointer() is wrong then, and seek() to where it believes it is does nothing.
#
# Why it matters: a status file that is polled, or a log, is cut at a length that it once had, or ends in zeros that a
# parser takes for data. Call refresh() before each read, or read from getInputStream() to its end; use seek(), not
# skipBytes().
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >pom.xml <<'XML'
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>finding</groupId><artifactId>finding</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.commons</groupId><artifactId>commons-vfs2</artifactId><version>2.10.0</version>
    </dependency>
    <dependency>
      <groupId>com.github.mwiede</groupId><artifactId>jsch</artifactId><version>2.28.8</version>
    </dependency>
    <dependency>
      <groupId>org.apache.sshd</groupId><artifactId>sshd-sftp</artifactId><version>2.20.0</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$dir/m2" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >"$dir/mvn.log" 2>&1 ||
    { cat "$dir/mvn.log" >&2; exit 1; }

cat >Run.java <<'JAVA'
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.commons.vfs2.FileObject;
import org.apache.commons.vfs2.FileSystemOptions;
import org.apache.commons.vfs2.impl.StandardFileSystemManager;
import org.apache.commons.vfs2.provider.sftp.SftpFileSystemConfigBuilder;
import org.apache.commons.vfs2.util.RandomAccessMode;
import org.apache.sshd.server.SshServer;
import org.apache.sshd.server.keyprovider.SimpleGeneratorHostKeyProvider;
import org.apache.sshd.sftp.server.SftpSubsystemFactory;

public class Run {
    static final Path PATH = Path.of("file").toAbsolutePath();

    static String read(FileObject file) throws Exception {
        return file.getContent().getString("UTF-8").replace('\0', '.');
    }

    static void show(FileObject file) throws Exception {
        Files.writeString(PATH, "0123456789");
        file.refresh();
        System.out.println("  10 bytes: " + read(file));
        Files.writeString(PATH, "0123456789abcdef");
        System.out.println("  16 bytes: " + read(file));
        Files.writeString(PATH, "012");
        System.out.println("  3 bytes: " + read(file));
        file.refresh();
        System.out.println("  3 bytes, refresh: " + read(file));

        Files.writeString(PATH, "0123456789");
        file.refresh();
        try (var content = file.getContent().getRandomAccessContent(RandomAccessMode.READ)) {
            content.skipBytes(4);
            System.out.println("  at " + content.getFilePointer() + " after skipping 4");
            content.seek(0);
            System.out.println("  read after seek to 0: " + (char) content.readByte());
        }
    }

    public static void main(String[] args) throws Exception {
        var server = SshServer.setUpDefaultServer();
        server.setHost("127.0.0.1");
        server.setKeyPairProvider(new SimpleGeneratorHostKeyProvider());
        server.setPasswordAuthenticator((user, password, session) -> true);
        server.setSubsystemFactories(List.of(new SftpSubsystemFactory()));
        server.start();
        Files.writeString(PATH, "");
        var manager = new StandardFileSystemManager();
        manager.init();
        var options = new FileSystemOptions();
        SftpFileSystemConfigBuilder.getInstance().setStrictHostKeyChecking(options, "no");
        SftpFileSystemConfigBuilder.getInstance().setUserDirIsRoot(options, false);
        SftpFileSystemConfigBuilder.getInstance().setDisableDetectExecChannel(options, true);
        System.out.println("local");
        show(manager.resolveFile("file://" + PATH));
        System.out.println("SFTP");
        show(manager.resolveFile("sftp://u:p@127.0.0.1:" + server.getPort() + PATH, options));
        manager.close();
        server.stop(true);
        System.exit(0);
    }
}
JAVA
timeout 120 java -cp 'lib/*' Run.java >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
local
  10 bytes: 0123456789
  16 bytes: 0123456789abcdef
  3 bytes: 012
  3 bytes, refresh: 012
  at 4 after skipping 4
  read after seek to 0: 0
SFTP
  10 bytes: 0123456789
  16 bytes: 0123456789
  3 bytes: 012.......
  3 bytes, refresh: 012
  at 0 after skipping 4
  read after seek to 0: 4
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
