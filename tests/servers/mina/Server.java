import java.nio.file.Path;
import java.util.List;
import org.apache.sshd.common.keyprovider.FileKeyPairProvider;
import org.apache.sshd.server.SshServer;
import org.apache.sshd.server.auth.pubkey.AcceptAllPublickeyAuthenticator;
import org.apache.sshd.server.shell.ProcessShellFactory;
import org.apache.sshd.sftp.server.SftpSubsystemFactory;

/**
 * An SSH server on Apache MINA SSHD, as its documentation sets one up.
 *
 * <p>{@code Server HOSTKEY [PORT]} prints the port on which it listens and serves until it is killed. Any public key is
 * accepted.
 */
public class Server {
    public static void main(String[] arguments) throws Exception {
        SshServer server = SshServer.setUpDefaultServer();
        server.setHost("127.0.0.1");
        server.setPort(arguments.length > 1 ? Integer.parseInt(arguments[1]) : 0);
        server.setKeyPairProvider(new FileKeyPairProvider(Path.of(arguments[0])));
        server.setPublickeyAuthenticator(AcceptAllPublickeyAuthenticator.INSTANCE);
        server.setShellFactory(new ProcessShellFactory("/bin/sh", "/bin/sh"));
        server.setCommandFactory(
                (channel, command) -> new ProcessShellFactory(command, "/bin/sh", "-c", command).createShell(channel));
        server.setSubsystemFactories(List.of(new SftpSubsystemFactory()));
        server.start();
        System.out.println(server.getPort());
        Thread.currentThread().join();
    }
}
