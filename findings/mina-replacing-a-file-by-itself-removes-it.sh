#!/usr/bin/env bash
# Apache MINA SSHD's SFTP file system removes a file that Files.copy or Files.move is to replace by itself.
#
# Seen with: sshd-sftp 2.20.0 as client and server, OpenJDK 17; with asyncssh 2.24.1 as the server it is the same.
#
# By the description of java.nio.file.Files, both calls have no effect if source and target are one file. The provider for
# sftp:// looks whether the target is there, removes it for REPLACE_EXISTING, and then reads or renames the source, which
# has just gone. The call fails and the file is lost. Two names for the file, through a linked directory, do the same.
# isSameFile() compares the names only, so a look before the call does not help.
#
# Why it matters: code that puts each file into its place relies on a move to where the file is already being harmless, as
# it is on a local disk, and the error comes after the loss. Without REPLACE_EXISTING the call is refused and nothing
# is lost; a target by a name of its own, renamed afterwards, is safe as well.
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
import static java.nio.file.StandardCopyOption.REPLACE_EXISTING;

import java.io.IOException;
import java.net.URI;
import java.nio.file.FileSystems;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.apache.sshd.server.SshServer;
import org.apache.sshd.server.keyprovider.SimpleGeneratorHostKeyProvider;
import org.apache.sshd.sftp.server.SftpSubsystemFactory;

public class Run {
    static final Path FILES = Path.of("files").toAbsolutePath();

    interface Call {
        Object run() throws IOException;
    }

    static void show(String what, Call call) throws IOException {
        Path file = FILES.resolve("folder/file");
        Files.writeString(file, "text");
        String result;
        try {
            result = String.valueOf(call.run());
        } catch (IOException error) {
            result = "an error";
        }
        System.out.println("  " + what + ": " + result + ", the file is " + (Files.exists(file) ? "there" : "gone"));
    }

    static void show(Path folder) throws IOException {
        Path file = folder.resolve("folder/file");
        Path same = folder.resolve("link/file");
        show("copy to itself", () -> Files.copy(file, file, REPLACE_EXISTING).equals(file));
        show("move to itself", () -> Files.move(file, file, REPLACE_EXISTING).equals(file));
        show("is the same by another name", () -> Files.isSameFile(file, same));
        show("copy to another name", () -> Files.copy(file, same, REPLACE_EXISTING).equals(same));
        show("move to another name", () -> Files.move(file, same, REPLACE_EXISTING).equals(same));
        show("move without REPLACE_EXISTING", () -> Files.move(file, same).equals(same));
    }

    public static void main(String[] args) throws Exception {
        Files.createDirectories(FILES.resolve("folder"));
        Files.createSymbolicLink(FILES.resolve("link"), Path.of("folder"));
        var server = SshServer.setUpDefaultServer();
        server.setHost("127.0.0.1");
        server.setKeyPairProvider(new SimpleGeneratorHostKeyProvider());
        server.setPasswordAuthenticator((user, password, session) -> true);
        server.setSubsystemFactories(List.of(new SftpSubsystemFactory()));
        server.start();
        System.out.println("local");
        show(FILES);
        System.out.println("SFTP");
        var uri = URI.create("sftp://u:p@127.0.0.1:" + server.getPort() + "/");
        try (var system = FileSystems.newFileSystem(uri, Map.of())) {
            show(system.getPath(FILES.toString()));
        }
        server.stop(true);
        System.exit(0);
    }
}
JAVA
timeout 120 java -cp 'lib/*' Run.java >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
local
  copy to itself: true, the file is there
  move to itself: true, the file is there
  is the same by another name: true, the file is there
  copy to another name: true, the file is there
  move to another name: true, the file is there
  move without REPLACE_EXISTING: true, the file is there
SFTP
  copy to itself: an error, the file is gone
  move to itself: an error, the file is gone
  is the same by another name: false, the file is there
  copy to another name: an error, the file is gone
  move to another name: an error, the file is gone
  move without REPLACE_EXISTING: an error, the file is there
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
