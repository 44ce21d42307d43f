#!/usr/bin/env bash
# One SETSTAT with a size and times: two SFTP servers for the JVM set the times first and the size last.
#
# Seen with: Apache MINA SSHD 2.20.0 and Maverick Synergy 3.1.1 as the servers, MINA's client; OpenJDK 17 on Linux.
#
# The change of the size makes the file new again, so the modification time is that of the request and not the one
# that was asked for. The answer is OK. OpenSSH, pkg/sftp and asyncssh do it the other way round, and both attributes
# hold. FSETSTAT is no better. Where the file has that size already, the times hold here too.
#
# Why it matters: one request for all attributes is the obvious way to end a copy over a longer file in one round
# trip. Every later run of a tool that compares times then copies the file again, and a test whose files do not change
# their size never shows it. Send the size apart, and the times last.
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
      <groupId>com.sshtools</groupId><artifactId>maverick-synergy-server</artifactId><version>3.1.1</version>
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
import com.sshtools.common.files.direct.NioFileFactory.NioFileFactoryBuilder;
import com.sshtools.common.publickey.SshKeyPairGenerator;
import com.sshtools.server.InMemoryPasswordAuthenticator;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.FileTime;
import java.util.List;
import org.apache.sshd.client.SshClient;
import org.apache.sshd.client.keyverifier.AcceptAllServerKeyVerifier;
import org.apache.sshd.server.SshServer;
import org.apache.sshd.server.keyprovider.SimpleGeneratorHostKeyProvider;
import org.apache.sshd.sftp.client.SftpClient;
import org.apache.sshd.sftp.client.SftpClientFactory;
import org.apache.sshd.sftp.server.SftpSubsystemFactory;

public class Run {
    static final FileTime ASKED = FileTime.fromMillis(1_000_000_000_000L);

    public static void main(String[] args) throws Exception {
        var mina = SshServer.setUpDefaultServer();
        mina.setHost("127.0.0.1");
        mina.setKeyPairProvider(new SimpleGeneratorHostKeyProvider());
        mina.setPasswordAuthenticator((user, password, session) -> true);
        mina.setSubsystemFactories(List.of(new SftpSubsystemFactory()));
        mina.start();

        var maverick = new com.sshtools.server.SshServer("127.0.0.1", 0);
        maverick.addHostKey(SshKeyPairGenerator.generateKeyPair(SshKeyPairGenerator.ECDSA));
        maverick.addAuthenticator(new InMemoryPasswordAuthenticator().addUser("u", "p".toCharArray()));
        maverick.setFileFactory(c -> NioFileFactoryBuilder.create().withHome(Path.of("/")).withoutSandbox().build());
        maverick.start();
        int port = 0;
        while (port <= 0) {
            Thread.sleep(100);
            for (var listening : maverick.getEngine().getContext().getListeningInterfaces()) {
                port = listening.getActualPort();
            }
        }

        try (var client = SshClient.setUpDefaultClient()) {
            client.setServerKeyVerifier(AcceptAllServerKeyVerifier.INSTANCE);
            client.start();
            look("MINA", client, mina.getPort(), Path.of(args[0]));
            look("Maverick", client, port, Path.of(args[0]));
        }
        System.exit(0);
    }

    static void look(String name, SshClient client, int port, Path folder) throws Exception {
        try (var session = client.connect("u", "127.0.0.1", port).verify().getSession()) {
            session.addPasswordIdentity("p");
            session.auth().verify();
            try (var sftp = SftpClientFactory.instance().createSftpClient(session)) {
                for (int size : new int[] {3, 10}) {
                    Path file = folder.resolve(name + size);
                    Files.writeString(file, "0123456789");
                    sftp.setStat(file.toString(), attributes(size));
                    report(name + " SETSTAT, size " + size, file);

                    Files.writeString(file, "0123456789");
                    try (var handle = sftp.open(file.toString(), SftpClient.OpenMode.Write)) {
                        sftp.setStat(handle, attributes(size));
                    }
                    report(name + " FSETSTAT, size " + size, file);
                }
                Path file = folder.resolve(name);
                Files.writeString(file, "0123456789");
                sftp.setStat(file.toString(), new SftpClient.Attributes().accessTime(ASKED).modifyTime(ASKED));
                report(name + " SETSTAT, no size", file);
            }
        }
    }

    static SftpClient.Attributes attributes(int size) {
        return new SftpClient.Attributes().size(size).accessTime(ASKED).modifyTime(ASKED);
    }

    static void report(String what, Path file) throws Exception {
        boolean kept = Files.getLastModifiedTime(file).equals(ASKED);
        System.out.println(what + ": " + Files.size(file) + " bytes, time " + (kept ? "as asked" : "lost"));
    }
}
JAVA
mkdir files
java -cp 'lib/*' Run.java "$dir/files" >actual 2>java.log || { cat java.log >&2; exit 1; }

cat >expected <<'END'
MINA SETSTAT, size 3: 3 bytes, time lost
MINA FSETSTAT, size 3: 3 bytes, time lost
MINA SETSTAT, size 10: 10 bytes, time as asked
MINA FSETSTAT, size 10: 10 bytes, time as asked
MINA SETSTAT, no size: 10 bytes, time as asked
Maverick SETSTAT, size 3: 3 bytes, time lost
Maverick FSETSTAT, size 3: 3 bytes, time lost
Maverick SETSTAT, size 10: 10 bytes, time as asked
Maverick FSETSTAT, size 10: 10 bytes, time as asked
Maverick SETSTAT, no size: 10 bytes, time as asked
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
