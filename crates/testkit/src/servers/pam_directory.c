/* Preloaded into an sshd: the directory of PAM services is the one that a variable names, not /etc/pam.d. */

#include <stdlib.h>

struct pam_conv;
struct pam_handle;

/* libpam's, from Linux-PAM 1.4 on. */
int pam_start_confdir(const char *service, const char *user, const struct pam_conv *conversation,
                      const char *directory, struct pam_handle **handle);

int pam_start(const char *service, const char *user, const struct pam_conv *conversation,
              struct pam_handle **handle)
{
    return pam_start_confdir(service, user, conversation, getenv("TESTKIT_PAM_DIRECTORY"), handle);
}
