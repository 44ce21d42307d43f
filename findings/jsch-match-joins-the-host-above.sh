#!/usr/bin/env bash
# JSch gives the lines of a Match block in ssh_config to the Host block above it.
#
# Seen with: JSch (com.github.mwiede) 2.28.8, OpenSSH 9.2p1 (ssh -G); OpenJDK 17.
#
# JSch's OpenSSHConfig knows Host and takes "Match host db.example" for one more keyword with a value. The block's
# lines then belong to whatever Host stands in front of it: "Host *.example" gets the port that is meant for
# db.example only. There is no warning. Apache MINA SSHD refuses the file ("Currently not able to process Match
# sections").
#
# Why it matters: hosts that have nothing to do with the Match block connect to its port, by its ProxyCommand, with
# its key. A file for programs that use JSch keeps Match blocks at the end, behind a "Host" that matches nothing real.
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
  </dependencies>
</project>
XML
mvn -q -B -Dmaven.repo.local="$dir/m2" dependency:copy-dependencies -DoutputDirectory="$dir/lib" >"$dir/mvn.log" 2>&1 ||
    { cat "$dir/mvn.log" >&2; exit 1; }
cat >config <<'END'
Host *.example
    User joe
Match host db.example
    Port 2222
Host guard
    User nobody
Match host db.example
    Port 2223
END

cat >Run.java <<'JAVA'
import com.jcraft.jsch.OpenSSHConfig;

public class Run {
    public static void main(String[] args) throws Exception {
        var config = OpenSSHConfig.parseFile("config");
        for (String host : new String[] {"db.example", "web.example", "guard", "other"}) {
            System.out.println("JSch, " + host + ": port " + config.getConfig(host).getPort());
        }
    }
}
JAVA
{
    for host in db.example web.example guard other; do
        ssh -TF config -G "$host" | sed -n "s/^port /ssh, $host: port /p"
    done
    java -cp 'lib/*' Run.java
} >actual

cat >expected <<'END'
ssh, db.example: port 2222
ssh, web.example: port 22
ssh, guard: port 22
ssh, other: port 22
JSch, db.example: port 2222
JSch, web.example: port 2222
JSch, guard: port 2223
JSch, other: port -1
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
