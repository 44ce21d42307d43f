#!/usr/bin/env bash
# "Port = 2222" in ssh_config: JSch keeps the "=", Apache MINA SSHD keeps the space.
#
# Seen with: JSch (com.github.mwiede) 2.28.8, Apache MINA SSHD 2.20.0, OpenSSH 9.2p1 (ssh -G); OpenJDK 17.
#
# ssh_config(5) allows white space around the "=" between a keyword and its value, and ssh reads the value alone. Both
# libraries handle "User=joe". With spaces, JSch's user is "= joe" and its port -1, which stands for "not set", so it
# connects to 22; MINA's user is " joe", and a port ends the reading of the file with NumberFormatException.
#
# Why it matters: nothing but the port on MINA is an error when the file is read. The login fails later, for a user
# that looks right in a log, or another port answers. Whoever writes ssh_config for other programs writes one space
# and no "=".
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
      <groupId>org.apache.sshd</groupId><artifactId>sshd-core</artifactId><version>2.20.0</version>
    </dependency>
    <dependency>
      <groupId>com.github.mwiede</groupId><artifactId>jsch</artifactId><version>2.28.8</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$dir/m2" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >"$dir/mvn.log" 2>&1 ||
    { cat "$dir/mvn.log" >&2; exit 1; }
cat >user <<'END'
Host bare
    User=joe
Host spaced
    User = joe
END
cat >port <<'END'
Host bare
    Port=2222
Host spaced
    Port = 2222
END

cat >Run.java <<'JAVA'
import com.jcraft.jsch.OpenSSHConfig;
import java.nio.file.Path;
import org.apache.sshd.client.config.hosts.HostConfigEntry;

public class Run {
    public static void main(String[] args) throws Exception {
        for (String host : new String[] {"bare", "spaced"}) {
            System.out.println(host + ", JSch: user '" + OpenSSHConfig.parseFile("user").getConfig(host).getUser()
                + "', port " + OpenSSHConfig.parseFile("port").getConfig(host).getPort());
            System.out.println(host + ", MINA: user '" + mina("user", host).getUsername() + "'");
        }
        try {
            System.out.println("MINA: port " + mina("port", "spaced").getPort());
        } catch (NumberFormatException error) {
            System.out.println("MINA: " + error.getMessage());
        }
    }

    static HostConfigEntry mina(String file, String host) throws Exception {
        var entries = HostConfigEntry.readHostConfigEntries(Path.of(file));
        var resolver = HostConfigEntry.toHostConfigEntryResolver(entries);
        return resolver.resolveEffectiveHost(host, 0, null, null, null, null);
    }
}
JAVA
{
    ssh -TF user -G spaced | sed -n 's/^user /ssh: user /p'
    ssh -TF port -G spaced | sed -n 's/^port /ssh: port /p'
    java -cp 'lib/*' Run.java
} >actual

cat >expected <<'END'
ssh: user joe
ssh: port 2222
bare, JSch: user 'joe', port 2222
bare, MINA: user 'joe'
spaced, JSch: user '= joe', port -1
spaced, MINA: user ' joe'
MINA: For input string: " 2222"
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
