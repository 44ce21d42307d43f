// golang.org/x/crypto/ssh as a program: peer TASK ADDRESS USER KEY KNOWN_HOSTS [ARGUMENT...], with the tasks that
// bench/README.md describes for all peers. It takes any host key, which spares it a look-up.
package main

import (
	"fmt"
	"io"
	"log"
	"os"
	"strconv"
	"time"

	"golang.org/x/crypto/ssh"
)

const (
	settle       = 2500 * time.Millisecond
	wellUnderWay = 64 << 20
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 6 {
		log.Fatal("usage: peer TASK ADDRESS USER KEY KNOWN_HOSTS [ARGUMENT...]")
	}
	task, address, user, key, rest := os.Args[1], os.Args[2], os.Args[3], os.Args[4], os.Args[6:]
	begun := time.Now()
	client := connect(address, user, key)
	switch task {
	case "cold":
		runTrue(client)
		fmt.Println(time.Since(begun).Nanoseconds())
	case "warm":
		count := number(rest[0])
		runMany(client, count/10+1)
		printTimes(runMany(client, count))
	case "bulk":
		fmt.Println(download(client, rest[0], -1, nil))
	case "beside":
		runMany(client, 10)
		switch rest[0] {
		case "download":
			underWay := make(chan struct{})
			go download(client, "cat /dev/zero", wellUnderWay, underWay)
			<-underWay
		case "stalled":
			session, _ := start(client, "cat /dev/zero")
			defer session.Close()
		}
		time.Sleep(settle)
		printTimes(runMany(client, number(rest[1])))
	default:
		log.Fatalf("no such task: %s", task)
	}
}

func connect(address, user, keyFile string) *ssh.Client {
	pem, err := os.ReadFile(keyFile)
	check(err)
	signer, err := ssh.ParsePrivateKey(pem)
	check(err)
	config := &ssh.ClientConfig{
		Config:          ssh.Config{Ciphers: []string{"aes128-gcm@openssh.com"}},
		User:            user,
		Auth:            []ssh.AuthMethod{ssh.PublicKeys(signer)},
		HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	}
	client, err := ssh.Dial("tcp", address, config)
	check(err)
	return client
}

func runTrue(client *ssh.Client) {
	session, err := client.NewSession()
	check(err)
	check(session.Run("true"))
}

func runMany(client *ssh.Client, count int) []time.Duration {
	times := make([]time.Duration, count)
	for n := range times {
		begun := time.Now()
		runTrue(client)
		times[n] = time.Since(begun)
	}
	return times
}

func start(client *ssh.Client, command string) (*ssh.Session, io.Reader) {
	session, err := client.NewSession()
	check(err)
	output, err := session.StdoutPipe()
	check(err)
	check(session.Start(command))
	return session, output
}

// download reads to the end, and closes reached after so many bytes.
func download(client *ssh.Client, command string, mark int64, reached chan<- struct{}) int64 {
	_, output := start(client, command)
	buffer := make([]byte, 256<<10)
	var total int64
	for {
		n, err := output.Read(buffer)
		total += int64(n)
		if reached != nil && total >= mark {
			close(reached)
			reached = nil
		}
		if err != nil {
			return total
		}
	}
}

func printTimes(times []time.Duration) {
	for _, t := range times {
		fmt.Println(t.Nanoseconds())
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
