#!/usr/bin/env escript
%% An SSH server on Erlang/OTP's ssh application, with its own ssh_sftpd.
%%
%%     server.escript DIRECTORY [PORT]
%%
%% prints the port on which it listens and serves until it is killed. DIRECTORY has the host key, as ssh_host_ed25519_key. Any
%% public key is accepted.
%%
%% Erlang's ports can neither close a command's standard input alone nor tell its standard error from its output, so that
%% commands run below command.py, which stands beside this file.
-mode(compile).

-export([main/1]).
-export([host_key/2, is_auth_key/3]).
-export([init/1, handle_ssh_msg/2, handle_msg/2, terminate/2]).

main([Directory | Port]) ->
    {ok, _} = application:ensure_all_started(ssh),
    {ok, Daemon} = ssh:daemon({127, 0, 0, 1}, number(Port), [
        {system_dir, Directory},
        {key_cb, ?MODULE},
        {auth_methods, "publickey"},
        {ssh_cli, {?MODULE, []}},
        {subsystems, [ssh_sftpd:subsystem_spec([])]},
        {parallel_login, true}
    ]),
    {ok, Info} = ssh:daemon_info(Daemon),
    io:format("~b~n", [proplists:get_value(port, Info)]),
    receive stop -> ok end.

number([]) -> 0;
number([Port]) -> list_to_integer(Port).

%% ssh_server_key_api

host_key(Algorithm, Options) -> ssh_file:host_key(Algorithm, Options).

is_auth_key(_Key, _User, _Options) -> true.

%% ssh_server_channel: a command, or a shell where none is named.

-record(state, {connection, channel, port}).

init(_) -> {ok, #state{}}.

handle_msg({ssh_channel_up, Channel, Connection}, State) ->
    {ok, State#state{connection = Connection, channel = Channel}};
handle_msg({Port, {data, <<Kind, Data/binary>>}}, #state{port = Port} = State) ->
    said(Kind, Data, State);
handle_msg({Port, {exit_status, _}}, #state{port = Port, channel = Channel} = State) ->
    {stop, Channel, State};
handle_msg(_, State) ->
    {ok, State}.

handle_ssh_msg({ssh_cm, Connection, {exec, Channel, WantReply, Command}}, State) ->
    ssh_connection:reply_request(Connection, WantReply, success, Channel),
    {ok, State#state{port = run(["-c", Command])}};
handle_ssh_msg({ssh_cm, Connection, {shell, Channel, WantReply}}, State) ->
    ssh_connection:reply_request(Connection, WantReply, success, Channel),
    {ok, State#state{port = run([])}};
handle_ssh_msg({ssh_cm, Connection, {pty, Channel, WantReply, _}}, State) ->
    ssh_connection:reply_request(Connection, WantReply, success, Channel),
    {ok, State};
handle_ssh_msg({ssh_cm, Connection, {env, Channel, WantReply, _, _}}, State) ->
    ssh_connection:reply_request(Connection, WantReply, success, Channel),
    {ok, State};
handle_ssh_msg({ssh_cm, Connection, {data, Channel, _, Data}}, State) ->
    give(State#state.port, <<"d", Data/binary>>),
    ssh_connection:adjust_window(Connection, Channel, byte_size(Data)),
    {ok, State};
handle_ssh_msg({ssh_cm, _, {eof, _}}, State) ->
    give(State#state.port, <<"e">>),
    {ok, State};
handle_ssh_msg({ssh_cm, _, {signal, _, _}}, State) ->
    {ok, State};
handle_ssh_msg({ssh_cm, _, {exit_signal, Channel, _, _, _}}, State) ->
    {stop, Channel, State};
handle_ssh_msg({ssh_cm, _, {exit_status, Channel, _}}, State) ->
    {stop, Channel, State};
handle_ssh_msg(_, State) ->
    {ok, State}.

terminate(_, #state{port = undefined}) -> ok;
terminate(_, #state{port = Port}) -> catch port_close(Port), ok.

run(Arguments) ->
    Script = filename:join(filename:dirname(escript:script_name()), "command.py"),
    open_port({spawn_executable, os:find_executable("python3")},
              [{args, [Script | Arguments]}, {packet, 4}, binary, exit_status, use_stdio]).

give(undefined, _) -> ok;
give(Port, Frame) -> catch port_command(Port, Frame), ok.

said($o, Data, #state{connection = Connection, channel = Channel} = State) ->
    ssh_connection:send(Connection, Channel, 0, Data),
    {ok, State};
said($r, Data, #state{connection = Connection, channel = Channel} = State) ->
    ssh_connection:send(Connection, Channel, 1, Data),
    {ok, State};
said($x, <<Status:32>>, #state{connection = Connection, channel = Channel} = State) ->
    ssh_connection:send_eof(Connection, Channel),
    ssh_connection:exit_status(Connection, Channel, Status),
    {stop, Channel, State}.
