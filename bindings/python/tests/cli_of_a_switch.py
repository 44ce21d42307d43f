"""The command line of a switch, as much of it as programs for network devices look at: prompts, modes, pages."""

from __future__ import annotations

import sys

HOSTNAME = "switch"
VERSION = "Cisco IOS Software, Version 15.2(4)E8\nuptime is 1 week\n"


class Switch:
    """Answers line by line; what is typed is echoed by the terminal."""

    def __init__(self) -> None:
        self.prompt = ">"
        self.pages = True
        self.configuration = ["hostname switch"]

    def answer(self, line: str) -> str:
        """Return the output of a line."""
        command = line.strip()
        if command == "enable":
            given = ask("Password: ")
            self.prompt = "#" if given == "swordfish" else self.prompt
            return "" if given == "swordfish" else "% Bad secrets\n"
        if command == "terminal length 0":
            self.pages = False
            return ""
        if command.startswith("terminal ") or command == "":
            return ""
        if command == "show version":
            return VERSION
        if command == "show running-config":
            return "\n".join(self.configuration) + "\nend\n"
        if command == "show log":
            lines = [f"line {number} {'x' * 60}" for number in range(2000)]
            return "\n".join(lines if not self.pages else [*lines[:20], " --More-- "]) + "\n"
        if self.prompt == "#" and command in ("configure terminal", "config term"):
            self.prompt = "(config)#"
            return "Enter configuration commands, one per line.  End with CNTL/Z.\n"
        if self.prompt.startswith("(config") and command in ("end", "exit"):
            self.prompt = "#" if command == "end" or self.prompt == "(config)#" else "(config)#"
            return ""
        if self.prompt.startswith("(config"):
            self.prompt = "(config-if)#" if command.startswith("interface ") else self.prompt
            self.configuration.append(command)
            return ""
        if command in ("write mem", "copy running-config startup-config"):
            return "Building configuration...\n[OK]\n"
        if command == "reload":
            return "reloaded\n" if ask("Proceed with reload? [confirm]") == "y" else "not reloaded\n"
        return f"{' ' * 10}^\n% Invalid input detected at '^' marker.\n\n"


def ask(question: str) -> str:
    """Asks whoever is there."""
    sys.stdout.write(question)
    sys.stdout.flush()
    return sys.stdin.readline().strip()


def main() -> None:
    switch = Switch()
    while True:
        sys.stdout.write(f"{HOSTNAME}{switch.prompt}")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line or (line.strip() in ("exit", "logout") and not switch.prompt.startswith("(config")):
            return
        sys.stdout.write(switch.answer(line))


if __name__ == "__main__":
    main()
