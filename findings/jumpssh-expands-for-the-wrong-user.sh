#!/usr/bin/env bash
# jumpssh: in a command for another user, variables and $(...) are expanded by the shell of the user who has logged in.
#
# Seen with: jumpssh 1.6.5 on Paramiko 5.1.0; asyncssh 2.24.1 and bash as the server.
#
# run_cmd(command, username="other") sends sudo su - other -c "COMMAND", and of the command's text only the double quotes are
# escaped. The login shell therefore works on it first: $HOME, $(id -un), backquotes and $1 are those of the login user,
# or empty, and a backslash is taken away. Without username the same text is sent as it is. A list of commands and
# get_cmd_output(), get_exit_code() and put(use_sudo=True) come here, too.
#
# Why it matters: run_cmd("rm -rf $HOME/cache", username="app") removes the directory of the one who logged in, as the other
# user; awk '{print $1}' prints whole lines; a variable that the command itself sets is empty when it is used. All end
# with code 0. Escape "$", "`" and "\" yourself when username is given, and only then.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
python3 -m venv venv
venv/bin/pip install -q jumpssh==1.6.5 paramiko==5.1.0 asyncssh==2.24.1
mkdir bin login other
# In place of sudo and su: the last argument goes to a shell whose home is another one.
cat >bin/sudo <<END
#!/bin/sh
[ "\$1 \$2 \$3 \$4" = "su - other -c" ] && HOME=$dir/other USER=other exec sh -c "\$5"
END
chmod +x bin/sudo

cat >run.py <<'PY'
import asyncio
import os
import warnings

import asyncssh

warnings.simplefilter("ignore")
from jumpssh import SSHSession  # noqa: E402

HERE = os.getcwd()


class Server(asyncssh.SSHServer):
    def password_auth_supported(self):
        return True

    def validate_password(self, username, password):
        return True


async def command(process):
    environment = {"PATH": f"{HERE}/bin:{os.environ['PATH']}", "HOME": f"{HERE}/login", "USER": "login"}
    shell = await asyncio.create_subprocess_exec("bash", "-c", process.command, stdin=asyncio.subprocess.DEVNULL,
                                                 stdout=asyncio.subprocess.PIPE, env=environment)
    output, _ = await shell.communicate()
    process.stdout.write(output.decode())
    process.exit(shell.returncode)


def use(port):
    session = SSHSession("127.0.0.1", "login", password="p", port=port).open()
    for text in ("echo $USER in ${HOME##*/}", 'name=file; echo "the $name"', "echo one two | awk '{print $1}'",
                 "echo $(basename $HOME)", r"printf %s 'a\\b'"):
        for name in (None, "other"):
            code, output = session.run_cmd(text, username=name)
            print(f"{text} ({'as other' if name else 'as login'}): code {code}, {output}")
    session.close()


async def main():
    key = asyncssh.generate_private_key("ecdsa-sha2-nistp256")
    server = await asyncssh.listen("127.0.0.1", 0, server_factory=Server, server_host_keys=[key], process_factory=command,
                                   line_editor=False)
    await asyncio.to_thread(use, server.get_port())
    server.close()


asyncio.run(main())
PY
timeout 60 venv/bin/python run.py >actual

cat >expected <<'END'
echo $USER in ${HOME##*/} (as login): code 0, login in login
echo $USER in ${HOME##*/} (as other): code 0, login in login
name=file; echo "the $name" (as login): code 0, the file
name=file; echo "the $name" (as other): code 0, the
echo one two | awk '{print $1}' (as login): code 0, one
echo one two | awk '{print $1}' (as other): code 0, one two
echo $(basename $HOME) (as login): code 0, login
echo $(basename $HOME) (as other): code 0, login
printf %s 'a\\b' (as login): code 0, a\\b
printf %s 'a\\b' (as other): code 0, a\b
END
diff -u expected actual || { echo "the behaviour has changed" >&2; exit 1; }
echo "as described"
