"""A become plugin of somebody else's, as doas needs one: a prompt that names user and host, on a terminal."""

from __future__ import annotations

import re

from ansible.plugins.become import BecomeBase

DOCUMENTATION = """
    name: doas
    short_description: becomes another user by doas
    description: As that of community.general.
    author: trunkline
    version_added: "1.0"
    options:
      become_user:
        description: Whom to become.
        default: root
        vars: [{name: ansible_become_user}]
      become_exe:
        description: The program.
        default: doas
        vars: [{name: ansible_become_exe}]
      become_pass:
        description: The password.
        vars: [{name: ansible_become_password}]
"""


class BecomeModule(BecomeBase):
    name = "doas"
    fail = ("Permission denied",)
    missing = ("Authorization required",)

    def check_password_prompt(self, b_output: bytes) -> bool:
        return re.search(rb"doas \([^)]*\) password: ?", b_output) is not None

    def build_become_command(self, cmd: str | None, shell: object) -> str | None:
        super().build_become_command(cmd, shell)
        if not cmd:
            return cmd
        self.prompt = True
        exe, user = self.get_option("become_exe"), self.get_option("become_user")
        return f"{exe} -u {user} {self._build_success_command(cmd, shell)}"
