// An SSH server on golang.org/x/crypto/ssh and github.com/pkg/sftp, like their examples, with real commands.
//
//	server HOSTKEY [PORT [IDENTIFICATION]]
//
// prints the port on which it listens and serves until it is killed. Any public key is accepted. It calls itself
// IDENTIFICATION where that is given.
package main

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"os/exec"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

func main() {
	key, err := os.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	signer, err := ssh.ParsePrivateKey(key)
	if err != nil {
		log.Fatal(err)
	}
	port := "0"
	if len(os.Args) > 2 {
		port = os.Args[2]
	}
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, nil },
	}
	config.AddHostKey(signer)
	if len(os.Args) > 3 {
		config.ServerVersion = os.Args[3]
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(listener.Addr().(*net.TCPAddr).Port)
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Fatal(err)
		}
		go serve(client, config)
	}
}

func serve(client net.Conn, config *ssh.ServerConfig) {
	_, channels, requests, err := ssh.NewServerConn(client, config)
	if err != nil {
		log.Print("connection: ", err)
		return
	}
	go ssh.DiscardRequests(requests)
	for opened := range channels {
		if opened.ChannelType() != "session" {
			opened.Reject(ssh.UnknownChannelType, "unknown channel type")
			continue
		}
		channel, requests, err := opened.Accept()
		if err != nil {
			log.Print("channel: ", err)
			return
		}
		go session(channel, requests)
	}
}

// session answers a channel's requests: the command, which follows its name in the payload, the shell or the subsystem.
func session(channel ssh.Channel, requests <-chan *ssh.Request) {
	for request := range requests {
		var value struct{ Text string }
		ssh.Unmarshal(request.Payload, &value)
		switch {
		case request.Type == "exec":
			request.Reply(true, nil)
			go run(channel, exec.Command("/bin/sh", "-c", value.Text))
		case request.Type == "shell":
			request.Reply(true, nil)
			go run(channel, exec.Command("/bin/sh"))
		case request.Type == "subsystem" && value.Text == "sftp":
			request.Reply(true, nil)
			go files(channel)
		case request.Type == "pty-req" || request.Type == "env":
			request.Reply(true, nil)
		default:
			request.Reply(false, nil)
		}
	}
}

// run joins a command's standard streams with its channel, and tells how it ended.
func run(channel ssh.Channel, command *exec.Cmd) {
	defer channel.Close()
	command.Stdout = channel
	command.Stderr = channel.Stderr()
	// Not command.Stdin, whose copy Wait waits for: the client need not close its input.
	stdin, err := command.StdinPipe()
	if err != nil {
		log.Print("command: ", err)
		return
	}
	go func() {
		io.Copy(stdin, channel)
		stdin.Close()
	}()
	var status struct{ Status uint32 }
	var failed *exec.ExitError
	if err := command.Run(); errors.As(err, &failed) {
		status.Status = uint32(failed.ExitCode()) & 255
	} else if err != nil {
		log.Print("command: ", err)
		status.Status = 127
	}
	channel.CloseWrite()
	channel.SendRequest("exit-status", false, ssh.Marshal(&status))
}

// files is the end of pkg/sftp's example, examples/go-sftp-server.
func files(channel ssh.Channel) {
	server, err := sftp.NewServer(channel)
	if err != nil {
		log.Print("sftp: ", err)
		return
	}
	if err := server.Serve(); err != nil && err != io.EOF {
		log.Print("sftp server completed with error: ", err)
	}
	server.Close()
}
