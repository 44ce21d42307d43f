#!/usr/bin/env bash
# JSch takes a remote name with "?" or "*" for a pattern: put() overwrites another file, rm() removes all that match.
#
# Seen with: JSch (com.github.mwiede) 2.28.8, Apache MINA SSHD 2.20.0 as the server; OpenJDK 17.
#
# get, put, rm, rmdir, rename, stat, chmod and others look through the directory for what matches a path, also for the
# path that a put() or a rename() makes. One match is taken for the name that was meant. Of several, rm(), rmdir() and
# chmod() take all, put() and rename() refuse. A put() to a pattern without a match is refused. mkdir() takes the name as it
# is, so what it makes is a pattern for the next call.
#
# Why it matters: "what?" is a valid name on a Unix server, and ls() hands it out as it is. The copy of such a file
# lands in "what1", and rm() of one name from a list removes others that are not in it. Put a backslash in front of each
# \ * ? in a path for any call but mkdir().
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
import com.jcraft.jsch.ChannelSftp;
import com.jcraft.jsch.JSch;
import com.jcraft.jsch.SftpException;
import java.io.ByteArrayInputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.TreeMap;
import org.apache.sshd.server.SshServer;
import org.apache.sshd.server.keyprovider.SimpleGeneratorHostKeyProvider;
import org.apache.sshd.sftp.server.SftpSubsystemFactory;

public class Run {
    static final Path FILES = Path.of("files").toAbsolutePath();

    interface Call {
        void run() throws Exception;
    }

    // Runs the call in a directory that has files of these names, each with its name as the text.
    static void show(String what, Call call, String... names) throws Exception {
        Files.createDirectory(FILES);
        for (String name : names) {
            Files.writeString(FILES.resolve(name), name);
        }
        String result = "done";
        try {
            call.run();
        } catch (SftpException error) {
            result = "refused";
        }
        var left = new TreeMap<String, String>();
        try (var list = Files.list(FILES)) {
            for (Path path : (Iterable<Path>) list::iterator) {
                String text = Files.isDirectory(path) ? "a directory" : Files.readString(path);
                left.put(path.getFileName().toString(), text);
                Files.delete(path);
            }
        }
        Files.delete(FILES);
        System.out.println(what + ": " + result + ", there is " + left);
    }

    static ByteArrayInputStream text() {
        return new ByteArrayInputStream("new".getBytes());
    }

    public static void main(String[] args) throws Exception {
        var server = SshServer.setUpDefaultServer();
        server.setHost("127.0.0.1");
        server.setKeyPairProvider(new SimpleGeneratorHostKeyProvider());
        server.setPasswordAuthenticator((user, password, session) -> true);
        server.setSubsystemFactories(List.of(new SftpSubsystemFactory()));
        server.start();
        var session = new JSch().getSession("u", "127.0.0.1", server.getPort());
        session.setPassword("p");
        session.setConfig("StrictHostKeyChecking", "no");
        session.connect();
        var sftp = (ChannelSftp) session.openChannel("sftp");
        sftp.connect();

        String what = FILES + "/what?";
        show("put what?, nothing like it", () -> sftp.put(text(), what), "other");
        show("put what?, one match", () -> sftp.put(text(), what), "what1");
        show("put what?, two matches", () -> sftp.put(text(), what), "what1", "what2");
        show("put what\\?, one match", () -> sftp.put(text(), FILES + "/what\\?"), "what1");
        show("rename other what?", () -> sftp.rename(FILES + "/other", what), "other", "what1");
        show("rm what?", () -> sftp.rm(what), "what?", "what1", "whatever");
        show("mkdir what?", () -> sftp.mkdir(what), "what1");
        session.disconnect();
        server.stop(true);
    }
}
JAVA
java -cp 'lib/*' Run.java >actual 2>errors || { cat errors >&2; exit 1; }

cat >expected <<'END'
put what?, nothing like it: refused, there is {other=other}
put what?, one match: done, there is {what1=new}
put what?, two matches: refused, there is {what1=what1, what2=what2}
put what\?, one match: done, there is {what1=what1, what?=new}
rename other what?: done, there is {what1=other}
rm what?: done, there is {whatever=whatever}
mkdir what?: done, there is {what1=what1, what?=a directory}
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
